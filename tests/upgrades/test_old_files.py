"""Databases that earlier versions have written are read by this one, with everything in them.

`files/COMMIT/` holds the two databases of a lab as the program of that commit left them: jobs that
succeeded, failed, ran, waited and were suspended, a session, a gang, two projects; an hour's usage.
A new shape of rows or tables adds the files of the last commit before it (`make_files.py`).
"""

from __future__ import annotations

import gzip
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from labs import DEVICES, running
from runai.hub_service.clusters.local.cluster import LocalCluster
from runai.hub_service.clusters.local.store import SqliteStore
from runai.hub_service.errors import Unavailable
from runai.hub_service.ledger import Ledger, schema
from runai.hub_service.ledger.store import Store
from runai.hub_service.ledger.totals import Scope
from runai.hub_service.scheduler import decide
from waiting import eventually_async

FILES = Path(__file__).with_name("files")
COMMITS = sorted(folder.name for folder in FILES.iterdir())
STATES = {
    "vision/done": "succeeded",
    "vision/broken": "failed",
    "vision/gang": "succeeded",
    "vision/sleeps": "running",
    "vision/lab-ana": "starting",
    "nlp/waits": "queued",
    "nlp/memory": "queued",
    "vision/held": "suspended",
}


@pytest.fixture(params=COMMITS)
def old(request, tmp_path: Path) -> Path:
    for name in ("cluster.sqlite", "ledger.sqlite"):
        with (
            gzip.open(FILES / request.param / f"{name}.gz") as packed,
            (tmp_path / name).open("wb") as plain,
        ):
            shutil.copyfileobj(packed, plain)
    return tmp_path


def test_every_workload_and_project_is_there_as_it_was(old):
    store = SqliteStore(old / "cluster.sqlite")
    rows = {row.id: row for row in store.rows()}
    projects = {p.spec.name: p.spec for p in store.projects()}

    assert {name: row.record.state.value for name, row in rows.items()} == STATES
    assert rows["nlp/memory"].spec.source == 'print("é")\n'
    assert rows["nlp/memory"].spec.gpu_memory_mib == 800
    assert rows["vision/broken"].record.exit_code == 1
    assert (projects["vision"].quota, projects["vision"].members) == (1500, ("ana",))
    assert (projects["nlp"].limit, projects["nlp"].admins) == (1000, ("patty",))
    assert [line.kind for line in store.history("vision/done")][-1] == "succeeded"
    store.close()


@pytest.mark.parametrize("old", ["5da0803"], indirect=True)
def test_what_newer_rows_say_is_read_from_them(old):
    store = SqliteStore(old / "cluster.sqlite")
    rows = {row.id: row for row in store.rows()}

    assert rows["vision/held"].spec.key == "asked-once"
    assert rows["nlp/waits"].spec.gpu_types == ("simulated",)
    process = rows["vision/sleeps"].record.workers[0].process
    assert process is not None
    assert process.ticks
    assert process.boot
    store.close()


async def test_the_cluster_goes_on_with_it(old):
    async with LocalCluster.open(old, DEVICES, "box") as cluster, running(cluster):

        async def is_known_to_be_lost() -> bool:  # with the machine on which it ran
            await cluster.apply(decide(await cluster.observe()))
            return (await cluster.workload("vision/sleeps")).state == "retrying"

        await eventually_async(is_known_to_be_lost)
        lost = await cluster.workload("vision/sleeps")
        assert lost.reason is not None
        assert "was interrupted" in lost.reason.text
        states = {record.id: record.state for record in await cluster.workloads()}
        assert states.keys() == STATES.keys()
        assert states["vision/held"] == "suspended"


def test_usage_is_there_and_its_tables_are_todays(old):
    ledger = Ledger(old / "ledger.sqlite", clock=lambda: 1_760_000_100.0)
    ledger.close()

    store = Store(old / "ledger.sqlite")
    (series,) = [s for s in store.open_series() if s.scope == Scope("project", project="vision")]
    assert round(series.now(0).allocated_s) == 60
    assert [e.kind for e in store.events_of("vision/done", 0, 10)] == ["running", "succeeded"]
    store.close()
    with closing(sqlite3.connect(old / "ledger.sqlite")) as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchall() == [
            (schema.HEAD,)
        ]


def test_what_ran_is_there_though_nobody_wrote_what_it_asked_for(old):
    store = Store(old / "ledger.sqlite")

    past = {one.workload: one for one in store.past_workloads(0.0).values()}

    assert round(past["vision/done"].held_s) == 60
    assert {(one.asked, one.starts) for one in past.values()} == {("", 1)}
    store.close()


@pytest.mark.parametrize("name", ["cluster.sqlite", "ledger.sqlite"])
def test_a_file_of_a_newer_version_is_refused_with_a_sentence(name, tmp_path):
    path = tmp_path / name
    opened = SqliteStore if name == "cluster.sqlite" else Store
    opened(path).close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.close()

    with pytest.raises(Unavailable, match="schema 9999, which this version does not know") as said:
        opened(path)

    assert "A newer version wrote it" in said.value.hint


@pytest.mark.parametrize("name", ["cluster.sqlite", "ledger.sqlite"])
@pytest.mark.parametrize("damage", ["no database", "torn page"])
def test_a_broken_file_is_refused_with_its_name_and_the_way_out(name, damage, tmp_path):
    path = tmp_path / name
    opened = SqliteStore if name == "cluster.sqlite" else Store
    opened(path).close()
    content = bytearray(path.read_bytes())
    if damage == "no database":
        content[:16] = b"something other\0"
    else:
        content[4096 : 3 * 4096] = b"\x5a" * (2 * 4096)
    path.write_bytes(content)

    with pytest.raises(Unavailable, match=f"{name} is broken") as said:
        opened(path)

    assert "runai restore" in said.value.hint
    assert path.read_bytes() == content
