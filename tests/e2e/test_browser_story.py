"""Two users in a real browser: share a GPU, train over quota, lose GPUs to reclaim, and resume."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from e2e import lab
from e2e.lab import PICTURES
from e2e.running import Platform
from held_training import held
from runai.hub_service.client import Client
from runai.hub_service.wire.schemas import ProjectPut, WorkloadView
from waiting import eventually

pytestmark = [
    pytest.mark.hub,
    pytest.mark.browser,
    pytest.mark.timeout(1200),
]

FINISH_SECONDS = 180


@pytest.fixture(scope="module")
def platform(start_platform: Callable[[], Platform]) -> Platform:
    """Run a new platform: examples are copied only to new homes."""
    return start_platform()


def test_bob_and_patty_share_five_gpus(platform: Platform, page_of: Callable[[str], Page]) -> None:
    # Two users take half a GPU each: they share one device.
    bob_page, patty_page = page_of("bob"), page_of("patty")
    bob_page.goto(f"{platform.url}/hub/spawn")
    lab.choose(bob_page, "½ GPU")
    lab.picture(bob_page, PICTURES, "form")
    lab.start(bob_page)
    lab.wait_for_lab(bob_page)
    lab.take(patty_page, platform.url, "½ GPU")
    lab.wait_for_lab(patty_page)
    bob, patty = platform.client("bob"), platform.client("patty")
    assert devices_of(bob) == devices_of(patty)

    # Their trainings stay, however long the other user takes to arrive.
    may_go_on = [hold_training(platform, user) for user in ("bob", "patty")]

    # Bob submits six jobs of one GPU from a notebook; four GPUs are left, so four run, over quota.
    lab.open_notebook(bob_page, platform.url, "bob", "examples/bob_and_patty.ipynb")
    lab.run_all(bob_page)
    expect_states(bob, {"running": 4, "queued": 2})
    panel = bob_page.locator(".runai-panel").first
    expect(panel).to_be_visible()
    expect(panel.get_by_role("row").filter(has_text="job-1")).to_contain_text("%", timeout=90_000)
    lab.picture(bob_page, PICTURES, "lab-bob-over-quota")

    # Patty submits two: exactly two of Bob's pause, hers run.
    lab.open_notebook(patty_page, platform.url, "patty", "examples/bob_and_patty.ipynb")
    lab.run_all(patty_page)
    expect_states(patty, {"running": 2})
    expect_states(bob, {"running": 2, "paused": 2, "queued": 2})
    expect(panel).to_contain_text("paused")
    lab.picture(bob_page, PICTURES, "lab-bob-reclaimed")
    lab.picture(patty_page, PICTURES, "lab-patty")

    # Her jobs end, Bob's resume from their checkpoints and finish.
    for each in reversed(may_go_on):
        each.touch()
    expect_states(patty, {"succeeded": 2}, FINISH_SECONDS)
    expect_states(bob, {"succeeded": 6}, FINISH_SECONDS)
    paused = [job for job in jobs_of(bob) if job.pauses]
    assert len(paused) == 2
    # The results do not depend on the pauses.
    assert len({final_line(bob, job.id) for job in jobs_of(bob)}) == 1
    for page in (bob_page, patty_page):
        expect(page.locator("#jp-main-statusbar")).to_contain_text("| Idle")


def test_waiting_page_says_what_for(platform: Platform, page_of: Callable[[str], Page]) -> None:
    # Patty joins vision; Bob holds the project's only half GPU for sessions.
    members = ["bob", "patty"]
    platform.client("admin").put_project(
        "vision", ProjectPut(build_quota=Decimal("0.5"), members=members)
    )
    bob_page, patty_page = page_of("bob"), page_of("patty")
    lab.stop_server(patty_page, platform.url)
    patty_page.goto(f"{platform.url}/hub/spawn")
    patty_page.get_by_label("Project").select_option("vision")
    lab.choose(patty_page, "½ GPU")
    expect(patty_page.get_by_text("would wait").first).to_be_visible()
    lab.picture(patty_page, PICTURES, "form-would-wait")
    lab.start(patty_page)

    sentence = patty_page.get_by_text(
        "notebooks of vision may hold 0.5 GPUs together, and hold 0.5: bob 0.5"
    )
    expect(sentence.first).to_be_visible(timeout=90_000)
    lab.picture(patty_page, PICTURES, "waiting")

    # He stops his server; she gets the half GPU.
    lab.stop_server(bob_page, platform.url)
    lab.wait_for_lab(patty_page)


def hold_training(platform: Platform, user: str) -> Path:
    """Make the example that a user's notebook submits wait; return the file that releases it."""
    examples = platform.data_dir / "users" / user / "examples"
    may_go_on, training = examples / "may-go-on", examples / "train_numpy.py"
    if PICTURES:
        may_go_on.touch()  # the pictures show working jobs
    kept = training.rename(examples / "training.py")
    training.write_text(held(kept, may_go_on))
    return may_go_on


def jobs_of(client: Client) -> list[WorkloadView]:
    """Return the jobs of the client's user."""
    return [w for w in client.workloads(user=client.whoami().name) if w.kind == "job"]


def devices_of(client: Client) -> set[str]:
    """Return the devices of the user's session."""
    mine = client.workloads(user=client.whoami().name)
    sessions = [w for w in mine if w.kind == "session"]
    return {share.uuid for s in sessions for worker in s.workers for share in worker.devices}


def expect_states(client: Client, expected: dict[str, int], within: float = 120) -> None:
    """Wait until the user's jobs are in these states."""

    def counted() -> bool:
        jobs = jobs_of(client)
        seen = [(job.name, job.state, job.reason and job.reason.text) for job in jobs]
        assert Counter(job.state for job in jobs) == expected, seen
        return True

    eventually(counted, within=within)


def final_line(client: Client, job: str) -> str:
    """Return the last line of a training: its result."""
    return [line.text for line in client.logs(job)][-1]
