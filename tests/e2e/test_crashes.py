"""Kill service and hub at random moments: nothing is lost, doubled, orphaned or leaked."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import psutil
import pytest

from e2e.running import Platform
from runai.hub_service.api.schemas import SubmitRequest
from runai.hub_service.client import Client
from runai.hub_service.errors import Conflict, RunaiError, Unavailable
from waiting import eventually

pytestmark = [pytest.mark.hub, pytest.mark.timeout(300)]

PROGRAM = Path(__file__).with_name("counting.py")
FINISHED = {"succeeded", "failed", "ended"}


def submit(client: Client, name: str, steps: int) -> None:
    """Submit one counting job, also while the service is away: its name makes a repeat safe."""
    request = SubmitRequest(
        name=name, gpus=1, command=["python", str(PROGRAM), str(steps), "0.05"], grace_seconds=10
    )

    def is_stored() -> bool:
        try:
            client.submit(request)
        except Unavailable:
            return False
        except Conflict:
            pass  # an earlier try was stored, but its answer was lost
        return True

    eventually(is_stored, within=60)


def states(client: Client) -> dict[str, str]:
    """Return the state of each workload, or nothing while the service is away."""
    with suppress(RunaiError):
        return {workload.name: workload.state for workload in client.workloads()}
    return {}


def crash(platform: Platform, dice: random.Random) -> None:
    """Kill the service, which the hub starts again, or the hub, which a user starts again."""
    if dice.random() < 0.5:
        with suppress(LookupError, psutil.Error):
            platform.service_process().kill()
        return
    platform.kill()
    platform.start()


@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in range(2, 22))]
)
def test_crashes_lose_double_orphan_and_leak_nothing(
    start_platform: Callable[[], Platform], seed: int
) -> None:
    dice = random.Random(seed)
    platform = start_platform()
    bob, patty = platform.client("bob"), platform.client("patty")

    for number in range(6):
        submit(bob, f"bob-{number}", steps=60)
    moments = sorted(dice.sample(range(1, 300), 4))
    for number, moment in enumerate(moments):
        eventually(partial(has_counted, platform, moment), within=60)
        crash(platform, dice)
        if number == 1:
            submit(patty, "patty-0", steps=20)
            submit(patty, "patty-1", steps=20)
    platform.wait_until_served()

    def all_finished() -> bool:
        seen.update(states(bob) | states(patty))
        assert set(seen.values()) <= FINISHED, seen
        return len(seen) == 8

    seen: dict[str, str] = {}
    eventually(all_finished, within=120)
    assert set(seen.values()) == {"succeeded"}, seen
    folders = {
        workload.name: Path(workload.checkpoint_dir)
        for client in (bob, patty)
        for workload in (client.workload(view.id) for view in client.workloads())
    }
    assert {name for name, folder in folders.items() if (folder / "doubled").exists()} == set()
    finished = {name: (folder / "done").read_text().split() for name, folder in folders.items()}
    assert finished == {name: ["60" if "bob" in name else "20"] for name in folders}
    assert [n for n in bob.nodes() if any(device.allocated for device in n.devices)] == []
    assert left_over(platform) == []


def counted(platform: Platform) -> int:
    """Return how far all jobs have counted together: the clock of this story."""
    return sum(int(place.read_text()) for place in platform.data_dir.glob("jobs/**/place"))


def has_counted(platform: Platform, moment: int) -> bool:
    """Say whether the jobs have come so far."""
    return counted(platform) >= moment


def left_over(platform: Platform) -> list[str]:
    """Return the job processes of this platform that still run."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            words = process.cmdline()
            if str(PROGRAM) in words and str(platform.data_dir) in str(process.environ()):
                found.append(" ".join(words))
    return found
