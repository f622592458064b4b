"""Two ledgers on one database, files in use, and databases that refuse the connection."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from postgres import on_each_database
from runai.hub_service.ledger import DeviceAllocation, Ledger, UsageFilter
from runai.hub_service.ledger.store import LedgerStore
from runai.hub_service.wire.errors import InvalidRequest, Unavailable


@on_each_database
async def test_two_ledgers_on_one_database_never_mix_up_their_series(open_ledger, clock, rows):
    first, second = open_ledger(), open_ledger()
    for ledger, project in ((first, "vision"), (second, "nlp")):
        ledger.record(
            clock.now, 0.0, [DeviceAllocation(project, "ana", f"{project}/a", "GPU-0", 1000, "box")]
        )
    clock.now += 50
    for ledger in (second, first):
        await ledger.flush()

    assert rows("SELECT kind FROM series GROUP BY kind HAVING count(*) > 2") == []
    for project in ("vision", "nlp"):
        usage = await open_ledger().usage(UsageFilter(project=project), clock.now - 50, clock.now)
        assert usage.allocated_gpu_hours == pytest.approx(50 / 3600)


async def test_locked_ledger_file_is_written_after_the_lock_is_released(tmp_path, clock):
    file = tmp_path / "ledger.sqlite"
    LedgerStore(file).close()
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        ledger = Ledger(file, clock=clock)
        ledger.event("vision/exp", "running", "")
        await ledger.flush()
        assert ledger.unhealthy_reason() == "OperationalError"
        other.execute("ROLLBACK")

    await ledger.flush()

    assert not ledger.unhealthy_reason()
    assert [event.kind for event in await ledger.events("vision/exp")] == ["running"]
    ledger.close()


@pytest.mark.parametrize("state", ["newer", "broken"])
def test_newer_or_broken_ledger_database_is_rejected_when_opened(tmp_path, state):
    file = tmp_path / "ledger.sqlite"
    LedgerStore(file).close()
    if state == "newer":
        with closing(sqlite3.connect(file)) as other, other:
            other.execute("UPDATE alembic_version SET version_num = '9999'")
    else:
        file.write_bytes(b"no database" * 1000)

    with pytest.raises(Unavailable) as refused:
        Ledger(file)

    assert refused.value.code == f"database_{state}"


@pytest.mark.postgresql
@pytest.mark.parametrize(
    "address", ["nobody@/postgres", "ledger@/nothing"], ids=["unknown user", "unknown database"]
)
def test_refused_postgresql_connection_is_reported_as_a_wrong_setting(postgres, address):
    with pytest.raises(Unavailable) as refused:
        Ledger(postgres.address.replace("ledger@/postgres", address))

    assert refused.value.code == "history_refused"
    message = f"{refused.value} {refused.value.hint}"
    assert (
        "The database of the history (RUNAI_LEDGER) answers and refuses the connection." in message
    )
    assert str(postgres.folder) not in message


def test_invalid_ledger_address_is_rejected_without_revealing_the_password():
    with pytest.raises(InvalidRequest, match="RUNAI_LEDGER is no address") as refused:
        Ledger("postgresql+psycopg://ledger:secret@here:there/ledger")

    assert "secret" not in f"{refused.value} {refused.value.hint}"
