"""Fixtures for the whole test suite.

    free_port         () -> a TCP port on 127.0.0.1 that no process listens on
    eventually        wait for a condition, blocking: eventually(lambda: path.exists())
    eventually_async  the same in async tests: await eventually_async(job_is_running)
    chromium          path of a Chromium; the test needs the marker `browser`
    plane             a Kubernetes control plane, one for all tests with the marker `kubernetes`
    lab               a namespace there, which is removed after the test with all projects
    kubeconfig        the rights of the chart's service account, which the scheduler runs with
    real_hub, one_gpu, five_gpus    hubs that start once in a run (shared_hub.py)

Markers such as `browser` and `hub` state a test's capabilities (capabilities.py); if
`RUNAI_REQUIRE` names them (`browser,hub`), their skips are failures. `--tiers check,test` runs
some tiers of the suite (tiers.py). Fixtures for one part are in the conftest.py of its folder.
"""

from __future__ import annotations

import itertools
import os
import signal
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

import ports
import tiers
import waiting
from capabilities import CAPABILITIES, find_chromium, required
from control_plane.lab import ClusterLab, installed
from control_plane.plane import ControlPlane
from control_plane.programs import why_no_kubernetes
from shared_hub import five_gpus, one_gpu, real_hub  # noqa: F401  fixtures

# A slow example on a busy machine is no failure, so Hypothesis has no deadline. Unattended runs
# use fixed seeds: a failure by a new seed is not of the change under test. Local and long runs
# draw new seeds.
settings.register_profile(
    "any-machine",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=bool(os.environ.get("CI")),
    database=None if os.environ.get("CI") else settings.get_profile("default").database,
)
settings.load_profile("any-machine")

REQUIRED = pytest.StashKey[frozenset[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add options: one seed for the hours of faults (tests/faults), and the tiers to run."""
    parser.addoption("--seed", type=int, default=None, help="play this seed of tests/faults alone")
    parser.addoption("--tiers", type=tiers.chosen, help="play these alone: check,test,all,long")


def pytest_configure(config: pytest.Config) -> None:
    """Fail at once if RUNAI_REQUIRE is misspelt."""
    # A shell makes its background processes ignore SIGINT, and our children would inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Keras would import TensorFlow: with it in the process, PyTorch's first optimizer, which
    # imports Triton, aborts. Tests of back ends run in processes of their own.
    os.environ.setdefault("KERAS_BACKEND", "torch")
    # gRPC would restart its threads in every fork of a test; they crash there.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    try:
        config.stash[REQUIRED] = required()
    except ValueError as wrong:
        raise pytest.UsageError(str(wrong)) from None


@pytest.hookimpl(tryfirst=True)  # before xdist, which reads the groups in the same hook
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests of other tiers, and group tests that must share an xdist worker.

    Whole platforms run one after the other: two at once starve each other. Tests on Kubernetes
    have one control plane per worker, so that two workers run half of the modules each; tests on
    real nodes have another one, with its nodes.
    """
    if played := config.getoption("tiers"):
        split: dict[bool, list[pytest.Item]] = {True: [], False: []}
        for item in items:
            split[tiers.tier_of(item) in played].append(item)
        config.hook.pytest_deselected(items=split[False])
        items[:] = split[True]
    halves = itertools.cycle(("kubernetes-1", "kubernetes-2"))
    half: defaultdict[Path, str] = defaultdict(lambda: next(halves))
    for item in items:
        if item.get_closest_marker("nodes"):
            item.add_marker(pytest.mark.xdist_group("nodes"))
        elif item.get_closest_marker("kubernetes"):
            item.add_marker(pytest.mark.xdist_group(half[item.path]))
        elif item.get_closest_marker("hub") or item.get_closest_marker("browser"):
            item.add_marker(pytest.mark.xdist_group("platform"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Report the capabilities and tiers that did not run, and how to run them."""
    if played := terminalreporter.config.getoption("tiers"):
        reports = terminalreporter.stats.get("skipped", [])
        skips = [str(report.longrepr[2]).removeprefix("Skipped: ") for report in reports]
        terminalreporter.section("not played")
        for line in tiers.not_played(played, skips):
            terminalreporter.line(line)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test if the machine lacks its capability, with the reason."""
    for name, why_missing in CAPABILITIES.items():
        if item.get_closest_marker(name) and (reason := why_missing()):
            pytest.skip(f"{name}: {reason}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[Any]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn any skip of a required capability into a failure, wherever it was raised."""
    report = yield
    named = sorted(name for name in item.config.stash[REQUIRED] if item.get_closest_marker(name))
    if report.skipped and named and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.longrepr = f"RUNAI_REQUIRE={','.join(named)} forbids this skip: {reason}"
    return report


@pytest.fixture
def free_port() -> Callable[[], int]:
    """Return `ports.free_port`."""
    return ports.free_port


@pytest.fixture
def eventually() -> Callable[..., Any]:
    """Return `waiting.eventually`."""
    return waiting.eventually


@pytest.fixture
def eventually_async() -> Callable[..., Any]:
    """Return `waiting.eventually_async`."""
    return waiting.eventually_async


@pytest.fixture(scope="session")
def chromium() -> Path:
    """Return the path of Chromium; the marker `browser` ensures that there is one."""
    found = find_chromium()
    assert found is not None, "mark the test with @pytest.mark.browser"
    return found


@pytest.fixture(scope="session")
def plane() -> Iterator[ControlPlane]:
    """Yield a control plane with the chart's objects; each test has a namespace of its own."""
    if missing := why_no_kubernetes():
        pytest.skip(f"kubernetes: {missing}")
    with installed() as started:
        yield started


@pytest.fixture
def lab(plane: ControlPlane) -> Iterator[ClusterLab]:
    with ClusterLab(plane) as cluster_lab:
        yield cluster_lab


@pytest.fixture
def kubeconfig(plane: ControlPlane) -> Path:
    return plane.service_account("runai", "runai-scheduler")
