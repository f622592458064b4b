"""The choice of workloads without a GPU that may run at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runai.hub_service.clusters.workloads.cpu_job_bound import Bound, admitted
from runai.hub_service.scheduler.model.snapshot import Worker, WorkerState, Workload

ONE_CORE, TWO_CORES = Bound(1), Bound(2)
WAITS = (WorkerState.PENDING, WorkerState.RESERVED)


def job(
    name: str, user: str = "bob", at: int = 0, *, waits: int = 1, runs: int = 0, least: int = 1
) -> Workload:
    states = [WorkerState.RUNNING] * runs + [WorkerState.PENDING] * waits
    workers = tuple(Worker(name=f"p/{name}-{n}", state=state) for n, state in enumerate(states))
    return Workload(
        name=f"p/{name}",
        project="p",
        user=user,
        submitted=at,
        workers=workers,
        min_workers=min(least, len(workers)),
    )


def gang(name: str, user: str = "bob", at: int = 0, *, workers: int) -> Workload:
    return job(name, user, at, waits=workers, least=workers)


def shown(workloads: Sequence[Workload], bound: Bound) -> dict[str, int]:
    """Return the number of shown workers of each shown workload."""
    chosen = admitted(workloads, bound)
    return {name[2:]: len(workload.workers) for name, workload in chosen.shown.items()}


def why(workloads: Sequence[Workload], bound: Bound) -> dict[str, str]:
    return {workload.name[2:]: text for workload, text in admitted(workloads, bound).held}


BOBS = "bob runs {} of at most {} workers without a GPU ({})"
OF_ALL = "{} of at most {} workers without a GPU run on this machine ({})"
NEXT, OLDER = "the next starts when one ends", "an older one that needs more is next"
EACH, ONLY = "2 for each of 2 cores", "2 for the only core"


@pytest.mark.parametrize(
    ("workloads", "bound", "expected", "reasons"),
    [
        pytest.param(
            [job(f"a-{n}") for n in range(6)], TWO_CORES,
            {"a-0": 1, "a-1": 1, "a-2": 1, "a-3": 1},
            {name: f"{BOBS.format(4, 4, EACH)}; {NEXT}" for name in ("a-4", "a-5")},
            id="an array",
        ),
        pytest.param(
            [job("young", at=9), job("old", at=1), job("older", at=0)], ONE_CORE,
            {"older": 1, "old": 1}, {"young": f"{BOBS.format(2, 2, ONLY)}; {NEXT}"},
            id="oldest first",
        ),
        pytest.param(
            [job("old"), *(job(f"x-{n}", at=5, waits=0, runs=1) for n in range(3))], ONE_CORE,
            {"x-0": 1, "x-1": 1, "x-2": 1}, {"old": f"{BOBS.format(3, 2, ONLY)}; {NEXT}"},
            id="what runs stays, though it is more than the bound",
        ),
        pytest.param(
            [job("a", waits=0, runs=2), gang("big", at=1, workers=3), job("small", at=2)],
            TWO_CORES,
            {"a": 2},
            {
                "big": f"{BOBS.format(2, 4, EACH)}; this needs 3 at once",
                "small": f"{BOBS.format(2, 4, EACH)}; {OLDER}",
            },
            id="a gang lets no younger one of its user pass",
        ),
        pytest.param(
            [job("a", waits=0, runs=2), gang("big", at=1, workers=3), job("its", "eve", at=2)],
            TWO_CORES,
            {"a": 2, "its": 1}, {"big": f"{BOBS.format(2, 4, EACH)}; this needs 3 at once"},
            id="a gang lets other users pass",
        ),
        pytest.param(
            [
                *(job(f"of-{user}", user, waits=0, runs=2) for user in ("u1", "u2", "u3")),
                job("one", "u4", waits=0, runs=1),
                gang("big", "bob", at=1, workers=2),
                job("small", "eve", at=2),
            ],
            ONE_CORE,
            {"of-u1": 2, "of-u2": 2, "of-u3": 2, "one": 1},
            {
                "big": f"{OF_ALL.format(7, 8, '8 for the only core')}; this needs 2 at once",
                "small": f"{OF_ALL.format(7, 8, '8 for the only core')}; {OLDER}",
            },
            id="where the machine is full the oldest of all users is next",
        ),
        pytest.param(
            [gang("huge", workers=5), job("small", at=1)], TWO_CORES,
            {"small": 1},
            {
                "huge": "it needs 5 workers without a GPU at once, and one user runs at most 4"
                f" here ({EACH})"
            },
            id="a gang that never fits stands in nobody's way",
        ),
        pytest.param(
            [job("huge", runs=1, waits=2, least=3), job("small", at=1)], ONE_CORE,
            {"huge": 1, "small": 1}, {},
            id="what is left of a gang that never fits stands in nobody's way",
        ),
        pytest.param(
            [job("pair", runs=1, waits=1, least=2), job("other", runs=1, waits=0),
             job("small", at=1)], ONE_CORE,
            {"pair": 1, "other": 1}, {"small": f"{BOBS.format(2, 2, ONLY)}; {NEXT}"},
            id="what is left of a gang that fits lets no younger one of its user pass",
        ),
        pytest.param(
            [job("wide", waits=9, least=2), job("small", at=1)], TWO_CORES,
            {"wide": 4}, {"small": f"{BOBS.format(4, 4, EACH)}; {NEXT}"},
            id="workers beyond the minimum start while there is room",
        ),
        pytest.param(
            [job("wide", runs=3, waits=3, least=3), job("b", at=1)], TWO_CORES,
            {"wide": 4}, {"b": f"{BOBS.format(4, 4, EACH)}; {NEXT}"},
            id="a running workload gets more workers while there is room",
        ),
    ],
)  # fmt: skip
def test_oldest_workloads_are_shown_up_to_the_bound(workloads, bound, expected, reasons):
    assert shown(workloads, bound) == expected
    assert why(workloads, bound) == reasons


USERS = st.sampled_from(["ana", "bob", "eve", "mia", "pat"])


@st.composite
def jobs(draw: st.DrawFn) -> list[Workload]:
    drawn = []
    for number in range(draw(st.integers(0, 25))):
        runs, waits = draw(st.sampled_from([(0, 1), (0, 2), (0, 5), (1, 0), (2, 0), (1, 2)]))
        least = draw(st.integers(1, runs + waits))
        at = draw(st.integers(0, 3))
        drawn.append(job(f"j{number}", draw(USERS), at, waits=waits, runs=runs, least=least))
    return drawn


def _running(workload: Workload) -> list[Worker]:
    return [worker for worker in workload.workers if worker.state not in WAITS]


@given(jobs(), st.sampled_from([ONE_CORE, TWO_CORES]), st.randoms(use_true_random=False))
def test_bound_holds_and_nothing_passes_an_older_workload_of_its_user(workloads, bound, random):
    chosen = admitted(workloads, bound)
    held = [workload for workload, _ in chosen.held]

    shuffled = list(workloads)
    random.shuffle(shuffled)
    assert admitted(shuffled, bound) == chosen

    # Each is shown or held back, and running workloads are shown whole.
    assert chosen.shown.keys() | {w.name for w in held} == {w.name for w in workloads}
    assert len(chosen.shown) + len(held) == len(workloads)
    for workload in workloads:
        part = chosen.shown.get(workload.name)
        assert part is not None or not _running(workload)
        if part is not None:
            assert [w for w in part.workers if w in _running(workload)] == _running(workload)
            starts = len(part.workers) - len(_running(workload))
            assert not starts or len(part.workers) >= workload.minimum

    # Workers that start are within the bound, of a user and in all.
    run, start = Counter[str](), Counter[str]()
    for workload in workloads:
        run[workload.user] += len(_running(workload))
        if part := chosen.shown.get(workload.name):
            start[workload.user] += len(part.workers) - len(_running(workload))
    for user, more in start.items():
        assert not more or run[user] + more <= bound.for_user
    assert not start.total() or (run + start).total() <= bound.in_all

    # The oldest of a user below its minimum, except a workload that never fits.
    short: dict[str, Workload] = {}
    for workload in sorted(workloads, key=lambda w: (w.submitted, w.name)):
        part = chosen.shown.get(workload.name)
        has = len(part.workers) if part else 0
        if has < workload.minimum <= bound.for_user:
            short.setdefault(workload.user, workload)
    for user, oldest in short.items():
        passed = [
            part.name
            for part in chosen.shown.values()
            if part.user == user and len(part.workers) > len(_running(part))
            and (part.submitted, part.name) > (oldest.submitted, oldest.name)
        ]  # fmt: skip
        assert passed == []

        # It has no room, unless the machine is full.
        if (run + start).total() + bound.for_user <= bound.in_all:
            needs = oldest.minimum - len(_running(oldest))
            assert run[user] + start[user] + needs > bound.for_user
