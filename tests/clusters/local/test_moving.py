"""A move in the record and the history of a job, after a restart of the service, too."""

from __future__ import annotations

import pytest

from labs import MOVED, Clock, local_lab, move, plan, start
from runai.hub_service.model.records import HistoryEvent, last_move


async def test_job_move_is_in_record_and_history_after_a_service_restart(tmp_path):
    clock = Clock()
    async with local_lab(tmp_path, clock, forget=False) as lab:
        small = lab.job("small", on_term=143)
        await lab.started(small)
        assert await lab.cluster.apply(plan(move(small.id, 1))) == []
        await lab.until(small.id, "paused")
        await lab.pass_time(40)
        assert await lab.cluster.apply(plan(start(small.id, 1))) == []
        await lab.until(small.id, "running")

    async with local_lab(tmp_path, clock) as lab:
        [listed] = await lab.cluster.workloads()
        history = await lab.cluster.history(small.id)

    assert (listed.state, listed.moved) == ("running", MOVED)
    assert last_move(history) == f"{MOVED}, 40 s"


# An event: the second, its kind, its text.
@pytest.mark.parametrize(
    ("events", "expected"),
    [
        pytest.param([(9, "running", "")], "", id="never stopped"),
        pytest.param([(9, "stopping", MOVED)], MOVED, id="not running again"),
        pytest.param(
            [(9, "stopping", MOVED), (49, "running", "")], f"{MOVED}, 40 s", id="runs again"
        ),
        pytest.param(
            [(9, "stopping", MOVED), (49, "running", ""), (60, "running", "")],
            f"{MOVED}, 40 s",
            id="second worker running later",
        ),
        pytest.param(
            [(9, "stopping", MOVED), (49, "running", ""), (60, "stopping", "reclaimed")],
            "",
            id="last stop was no move",
        ),
        pytest.param(
            [(1, "running", ""), (9, "stopping", MOVED)], MOVED, id="running before its stop"
        ),
    ],
)
def test_last_move_of_a_job_is_its_last_stop_with_the_duration(events, expected):
    assert last_move([HistoryEvent(*event) for event in events]) == expected
