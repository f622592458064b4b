"""The watchdog's escalation: notices and signals, their order and times; spared processes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runai.hub_service.limits.watchdog import (
    EscalationStep,
    Holding,
    Rung,
    Watchdog,
    WatchedProcess,
)

GPU = "GPU-0"
LIMIT_MIB = 8192
OVER_LIMIT_MIB = LIMIT_MIB + 1000


def holding(
    *sizes: int, workload: str = "vision/a", device: str = GPU, limit: int = LIMIT_MIB, pid=100
):
    members = tuple(WatchedProcess(pid + n, float(pid + n), mib) for n, mib in enumerate(sizes))
    return Holding(workload, device, limit, members)


def run_watchdog(
    *samples: Sequence[Holding], interval_s: float = 1.0
) -> list[tuple[float, Rung, int | None]]:
    """Run the watchdog once a second; return the time, rung and pid of each step."""
    watchdog = Watchdog()
    return [
        (step.at, step.rung, step.target_process.pid if step.target_process else None)
        for second, holdings in enumerate(samples)
        for step in watchdog.check(second * interval_s, holdings)
    ]


# -- the ladder ----------------------------------------------------------------------------------


@pytest.mark.parametrize("interval_s", [1.0, 0.99, 1.02], ids=["on time", "early", "late"])
def test_workload_over_its_memory_limit_is_terminated_ten_seconds_after_interrupt(interval_s):
    steps = run_watchdog(*[[holding(OVER_LIMIT_MIB)]] * 19, interval_s=interval_s)

    assert [(round(at / interval_s), rung) for at, rung, _ in steps] == [
        (2, Rung.NOTICE),
        (5, Rung.INTERRUPT),
        (15, Rung.TERMINATE),
        (17, Rung.KILL),
    ]


@pytest.mark.parametrize(
    ("used_mib", "is_over"),
    [
        pytest.param([LIMIT_MIB], False, id="limit"),
        pytest.param([LIMIT_MIB + 512], False, id="limit and slack"),
        pytest.param([LIMIT_MIB + 513], True, id="one MiB more"),
        pytest.param([LIMIT_MIB // 2, LIMIT_MIB // 2 + 513], True, id="sum of two processes"),
    ],
)
def test_memory_watchdog_acts_only_beyond_limit_plus_slack(used_mib, is_over):
    assert bool(run_watchdog(*[[holding(*used_mib)]] * 3)) is is_over


def test_memory_watchdog_tolerates_two_percent_over_a_large_limit():
    assert not run_watchdog(*[[holding(102_000, limit=100_000)]] * 3)
    assert run_watchdog(*[[holding(102_001, limit=100_000)]] * 3)


def test_memory_peak_of_two_samples_causes_no_watchdog_step():
    over, within = [holding(OVER_LIMIT_MIB)], [holding(LIMIT_MIB)]

    assert run_watchdog(over, over, within, over, over, within) == []


def test_memory_escalation_restarts_after_the_workload_was_within_its_limit():
    over, within = [holding(OVER_LIMIT_MIB)], [holding(LIMIT_MIB)]

    steps = run_watchdog(*[over] * 7, within, *[over] * 3)

    assert [(at, rung) for at, rung, _ in steps] == [
        (2, Rung.NOTICE),
        (5, Rung.INTERRUPT),
        (7, Rung.BACK),
        (10, Rung.NOTICE),
    ]


def test_workload_whose_processes_exited_gets_no_further_watchdog_signal():
    exited = Holding("vision/a", GPU, LIMIT_MIB, ())

    steps = run_watchdog(*[[holding(OVER_LIMIT_MIB)]] * 6, [exited])

    assert [(at, rung) for at, rung, _ in steps] == [(2, Rung.NOTICE), (5, Rung.INTERRUPT)]


def test_memory_watchdog_signals_the_largest_process_of_a_workload():
    steps = run_watchdog(*[[holding(1000, 7000, 1900)]] * 18)

    assert {pid for _, rung, pid in steps if rung.signal} == {101}


def test_memory_watchdog_signals_the_kernel_before_its_notebook_server():
    server, kernel = WatchedProcess(1, 1.0, 9000, spared=True), WatchedProcess(2, 2.0, 10)
    both = Holding("vision/lab", GPU, LIMIT_MIB, (server, kernel))
    alone = Holding("vision/lab", GPU, LIMIT_MIB, (server,))

    steps = run_watchdog(*[[both]] * 18, *[[alone]] * 2)

    assert [(rung, pid) for _, rung, pid in steps if pid] == [
        (Rung.INTERRUPT, 2),
        (Rung.TERMINATE, 2),
        (Rung.KILL, 2),
        (Rung.INTERRUPT, 1),
    ]


def test_memory_escalation_of_a_reused_pid_begins_with_an_interrupt():
    first = Holding("vision/a", GPU, LIMIT_MIB, (WatchedProcess(7, 1.0, OVER_LIMIT_MIB),))
    second = Holding("vision/a", GPU, LIMIT_MIB, (WatchedProcess(7, 99.0, OVER_LIMIT_MIB),))

    steps = run_watchdog(*[[first]] * 16, *[[second]] * 11)

    assert [(at, rung) for at, rung, _ in steps] == [
        (2, Rung.NOTICE),
        (5, Rung.INTERRUPT),
        (15, Rung.TERMINATE),
        (16, Rung.INTERRUPT),
        (26, Rung.TERMINATE),
    ]


def test_unmeasured_device_pauses_memory_escalation_without_a_reset():
    watchdog = Watchdog()
    for second in range(3):
        watchdog.check(second, [holding(OVER_LIMIT_MIB)])

    assert watchdog.check(6, [holding(OVER_LIMIT_MIB)], unknown={GPU}) == []
    assert watchdog.check(7, [], unknown={GPU}) == []
    assert [step.rung for step in watchdog.check(8, [holding(OVER_LIMIT_MIB)])] == [Rung.INTERRUPT]


def test_memory_watchdog_forgets_a_workload_that_released_its_device():
    watchdog = Watchdog()
    for second in range(3):
        watchdog.check(second, [holding(OVER_LIMIT_MIB)])

    assert watchdog.check(3, []) == []
    assert watchdog.check(9, [holding(OVER_LIMIT_MIB)]) == []


def test_watchdog_sentences_name_memory_amounts_and_the_process():
    process = WatchedProcess(4711, 1.0, 6246, "python3")
    notice = EscalationStep(0.0, Rung.NOTICE, "vision/a", GPU, limit_mib=8192, used_mib=9216)
    interrupted = EscalationStep(0.0, Rung.INTERRUPT, "vision/a", GPU, 8192, 9216, process)
    share = "uses 9.0 GiB of device memory, and its share is 8.0 GiB"
    back = EscalationStep(0.0, Rung.BACK, "vision/a", GPU, limit_mib=8192, used_mib=4096)

    assert [s.sentence() for s in (notice, interrupted, back)] == [
        f"{share}: in 3 s its largest process is interrupted",
        f"{share}: python3 (4711) with 6.1 GiB is interrupted",
        "is within its share of device memory again (4.0 GiB)",
    ]
    assert interrupted.outlook() == ", and ends in 10 s unless it frees memory"
    assert notice.outlook() == back.outlook() == ""


# -- always --------------------------------------------------------------------------------------

WORKLOADS = ["vision/a", "vision/b", "nlp/c"]

watched_processes = st.builds(
    WatchedProcess,
    pid=st.integers(2, 9),  # few, so that pids recur
    created=st.integers(0, 2).map(float),
    memory_mib=st.integers(0, 12_000),
    spared=st.booleans(),
)


@st.composite
def device_sample(draw) -> list[Holding]:
    """Draw the workloads on a device and their processes; each process has one workload."""
    processes = draw(st.lists(watched_processes, unique_by=lambda m: m.pid, max_size=6))
    owner = {m.pid: draw(st.sampled_from(WORKLOADS)) for m in processes}
    return [
        Holding(w, GPU, LIMIT_MIB, tuple(m for m in processes if owner[m.pid] == w))
        for w in draw(st.sets(st.sampled_from(WORKLOADS)))
    ]


intervals = st.sampled_from([0.9, 1.0, 1.1, 4.0])
# Mostly repeated samples: escalation needs a persistent excess.
histories = st.lists(
    st.tuples(device_sample(), st.integers(1, 12), intervals, st.booleans()), min_size=1, max_size=6
)


class StepChecker:
    """A checker of each of a watchdog's steps against the samples so far."""

    def __init__(self) -> None:
        self.watchdog = Watchdog()
        self.now = 0.0
        self.over: dict[str, int] = {}
        self.notified_at: dict[str, float] = {}
        self.signalled: dict[tuple[str, int, float], tuple[Rung, float]] = {}

    def check_sample(self, holdings: list[Holding], interval: float, *, gap: bool) -> None:
        self.now += interval
        steps = self.watchdog.check(self.now, holdings, {GPU} if gap else set())
        if gap:
            assert steps == []
            return
        holdings_by_workload = {h.workload: h for h in holdings}
        self.over = {
            w: self.over.get(w, 0) + 1 for w, h in holdings_by_workload.items() if h.is_over
        }
        self.notified_at = {w: at for w, at in self.notified_at.items() if w in self.over}
        assert len({step.workload for step in steps}) == len(steps)
        for step in steps:
            assert step.rung is Rung.BACK or self.over[step.workload] >= 3
            if step.target_process is None:
                self.check_notice(step)
            else:
                self.check_signal(step, step.target_process, holdings_by_workload[step.workload])

    def check_notice(self, step: EscalationStep) -> None:
        if step.rung is Rung.NOTICE:
            assert step.workload not in self.notified_at
            self.notified_at[step.workload] = self.now
        else:
            assert (step.rung, step.workload in self.over) == (Rung.BACK, False)

    def check_signal(self, step: EscalationStep, process: WatchedProcess, holding: Holding) -> None:
        assert process in holding.members
        assert not process.spared or all(m.spared for m in holding.members)
        # Each step may be due a quarter second early.
        assert self.now - self.notified_at[step.workload] >= 3 - 0.25
        key = (step.workload, process.pid, process.created)
        if step.rung is not Rung.INTERRUPT:
            before, at = self.signalled[key]
            assert (before, step.rung) in RUNG_ORDER
            assert self.now - at >= (10 if before is Rung.INTERRUPT else 2) - 0.25
        self.signalled[key] = (step.rung, self.now)


RUNG_ORDER = {
    (Rung.INTERRUPT, Rung.TERMINATE),
    (Rung.TERMINATE, Rung.KILL),
    (Rung.KILL, Rung.KILL),  # stuck in the driver
}


@given(histories)
def test_memory_watchdog_signals_only_workloads_over_their_limit_after_a_notice(history):
    checker = StepChecker()
    for holdings, times, interval, gap in history:
        for _ in range(times):
            checker.check_sample(holdings, interval, gap=gap)
