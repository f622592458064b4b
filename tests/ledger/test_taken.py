"""Of two ledgers on one database the one that was opened first never writes again.

A leader that was frozen (SIGSTOP, a machine that slept) wakes after the next one has begun, with
rows that wait to be written and numbers that are the other's by now.
"""

from __future__ import annotations

import logging
import sqlite3
from contextlib import closing

import pytest
import sqlalchemy as sa

from ledger.databases import on_each_database
from runai.hub_service.errors import InvalidRequest, Unavailable
from runai.hub_service.ledger import Held, Ledger, UsageFilter
from runai.hub_service.ledger.opening import ledger_url
from runai.hub_service.ledger.owner import Taken
from runai.hub_service.ledger.store import Batch, Event, Store

EVERYTHING = (
    "SELECT * FROM series ORDER BY id",
    "SELECT * FROM totals ORDER BY series_id, at",
    "SELECT * FROM spans ORDER BY id",
    "SELECT workload, kind FROM events ORDER BY id",
)


def held(project: str) -> list[Held]:
    return [Held(project, "ana", f"{project}/exp", "GPU-0", 1000, "box")]


@pytest.fixture
async def two(ledger, clock):
    """A frozen ledger with a minute of vision's that is not written, and the next one's of nlp."""
    frozen = ledger()
    frozen.record(clock.now, 0.0, held("vision"))
    frozen.event("vision/exp", "running", "")
    clock.now += 60
    next_ = ledger()
    next_.record(clock.now, 0.0, held("nlp"))
    clock.now += 50
    await next_.flush()
    return frozen, next_


async def wakes_and_writes(frozen):
    await frozen.flush()


async def wakes_and_ends(frozen):
    frozen.close()


async def wakes_and_drops_what_is_old(frozen):
    frozen._writer.drop_old(9_999_999_999.0)


@on_each_database
@pytest.mark.parametrize("wakes", [wakes_and_writes, wakes_and_ends, wakes_and_drops_what_is_old])
async def test_a_frozen_ledger_changes_nothing_of_the_next_ones(two, clock, rows, caplog, wakes):
    frozen, next_ = two
    before = [rows(sql) for sql in EVERYTHING]

    with caplog.at_level(logging.WARNING):
        await wakes(frozen)
        await wakes(frozen)

    assert [rows(sql) for sql in EVERYTHING] == before
    assert [record.message for record in caplog.records] == [
        "another service has taken the history: what waited to be written is dropped"
    ]
    found = await next_.usage(UsageFilter(project="nlp"), clock.now - 50, clock.now)
    assert round(sum((p.allocated or 0) * found.step_s for p in found.points)) == 50


@on_each_database
async def test_who_has_lost_the_history_says_that_it_is_without_and_goes_on(two, clock):
    frozen, next_ = two
    await frozen.flush()
    frozen.record(clock.now, 0.0, held("nlp"))
    clock.now += 60
    await frozen.flush()
    await frozen.events("nlp/exp")  # what can be read mends nothing

    assert frozen.trouble()
    assert not next_.trouble()


@on_each_database
async def test_the_next_one_goes_on_from_what_was_written_before_it(ledger, clock):
    first = ledger()
    first.record(clock.now, 0.0, held("vision"))
    clock.now += 60
    await first.flush()

    assert ledger().totals("vision/exp").allocated_s == pytest.approx(50, abs=10)


@on_each_database
def test_who_only_reads_takes_nothing_and_may_not_write(database):
    owner, reader = Store(database), Store(database)
    owner.take()

    assert list(reader.open_series()) == []
    with pytest.raises(Taken):
        reader.write(Batch(events=[Event(0.0, "vision/exp", "queued", "")]))
    owner.write(Batch(events=[Event(1.0, "vision/exp", "queued", "")]))
    assert [event.at for event in reader.events_of("vision/exp", 0.0, 10)] == [1.0]
    for store in (owner, reader):
        store.close()


@pytest.mark.postgresql
@pytest.mark.parametrize("new_database", ["postgresql"], indirect=True)
def test_who_froze_in_a_transaction_is_put_out_by_the_server(postgres, database):
    frozen, next_ = Store(database), Store(database)
    frozen.take()
    writing = frozen._writing()
    connection = writing.__enter__()  # and says nothing more

    next_.take()  # waits for its row until the server ends the other

    with pytest.raises(sa.exc.DBAPIError):
        connection.execute(sa.text("SELECT 1"))
    engine = sa.create_engine(ledger_url(database))
    with engine.connect() as connection:
        assert connection.scalar(sa.text("SELECT epoch FROM owner")) == 2
    engine.dispose()
    for store in (frozen, next_):
        store.close()


async def test_a_file_that_somebody_writes_for_long_is_taken_when_they_have_done(tmp_path, clock):
    file = tmp_path / "ledger.sqlite"
    Store(file).close()
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        ledger = Ledger(file, clock=clock)
        ledger.event("vision/exp", "running", "")
        assert ledger.trouble() == "OperationalError"
        other.execute("ROLLBACK")

    await ledger.flush()

    assert not ledger.trouble()
    assert [event.kind for event in await ledger.events("vision/exp")] == ["running"]
    ledger.close()


@pytest.mark.parametrize("wrong", ["newer", "broken"])
def test_what_no_waiting_mends_is_refused_at_once(tmp_path, wrong):
    file = tmp_path / "ledger.sqlite"
    Store(file).close()
    if wrong == "newer":
        with closing(sqlite3.connect(file)) as other, other:
            other.execute("UPDATE alembic_version SET version_num = '9999'")
    else:
        file.write_bytes(b"no database" * 1000)

    with pytest.raises(Unavailable) as refused:
        Ledger(file)

    assert refused.value.code == f"database_{wrong}"


@pytest.mark.postgresql
@pytest.mark.parametrize("wrong", ["nobody@/postgres", "ledger@/nothing"], ids=["user", "database"])
def test_a_server_that_refuses_the_connection_is_a_wrong_setting(postgres, wrong):
    with pytest.raises(Unavailable) as refused:
        Ledger(postgres.format("postgres").replace("ledger@/postgres", wrong))

    assert refused.value.code == "history_refused"
    said = f"{refused.value} {refused.value.hint}"
    assert "The database of the history (RUNAI_LEDGER) answers and refuses the connection." in said
    assert postgres.partition("host=")[2] not in said


def test_what_is_no_address_is_refused_without_its_password():
    with pytest.raises(InvalidRequest, match="RUNAI_LEDGER is no address") as refused:
        Ledger("postgresql+psycopg://ledger:secret@here:there/ledger")

    assert "secret" not in f"{refused.value} {refused.value.hint}"
