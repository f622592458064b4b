"""The README's first ten minutes, played in a browser as they are written there.

Users, notebook, share and commands come from README.md itself. Without pauses the trainings wait
for the test, so that its outcome does not depend on the machine's speed; with a person's pauses
they run as they are.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, WebSocket, expect

from e2e import lab
from e2e.lab import PICTURES
from hub_platform import HubPlatform
from runai.hub_service.client import Client
from runai.hub_service.processes.user_environment import UserEnvironment
from runai.hub_service.wire.schemas import WorkloadView
from waiting import eventually

pytestmark = [pytest.mark.hub, pytest.mark.browser]

README = Path(__file__).parents[2] / "README.md"
README_URL = "http://127.0.0.1:8000"
USER_PAUSE_S = 120.0
"""Pause of a user between two steps."""
END_TIMEOUT_S = 900
FEW_EPOCHS = "5"

SHORTEN_TRAINING = f"""
import sys
if "--epochs" in sys.argv:
    sys.argv[sys.argv.index("--epochs") + 1] = "{FEW_EPOCHS}"
"""

LEARNED = "has learned"
"""Printed after an epoch, before the program waits."""

GATED_TRAINING = """
import pathlib, runpy, sys, threading


class Event(threading.Event):
    def wait(self, timeout=None):
        if timeout is None:
            return super().wait()
        print({learned!r}, flush=True)
        while not (self.is_set() or pathlib.Path({may_go_on!r}).exists()):
            super().wait(0.02)
        return self.is_set()


threading.Event = Event
sys.argv[0] = {training!r}
runpy.run_path({training!r}, run_name="__main__")
"""
"""An example of ours with epochs that last until a file exists, however slow the machine.

It is paused where it waits. The result equals that of the plain training bit for bit.
"""


def readme_steps() -> dict[int, str]:
    """Return the README's numbered steps."""
    section = README.read_text(encoding="utf-8").split("## The first ten minutes")[1]
    parts = re.split(r"^(\d)\. ", section.split("\n## ")[0], flags=re.MULTILINE)
    return dict(zip(map(int, parts[1::2]), parts[2::2], strict=True))


def code_spans(step: str) -> list[str]:
    """Return what a step quotes between backticks, in one line each."""
    outside = re.sub(r"```.*?```", "", step, flags=re.DOTALL)
    return [" ".join(words.split()) for words in re.findall(r"`+([^`]+)`+", outside)]


def code_lines(step: str) -> list[str]:
    """Return the lines of a step's code block."""
    [block] = re.findall(r"```\n(.*?)```", step, flags=re.DOTALL)
    return [line.strip() for line in block.splitlines() if line.strip()]


class Terminal:
    """A terminal of JupyterLab; it types a line and waits for the line's end."""

    def __init__(self, page: Page, url: str, user: str) -> None:
        """Open one from the launcher."""
        self._page, self._typed, self._pieces = page, 0, list[str]()
        page.goto(f"{url}/user/{user}/lab?reset")
        with page.expect_websocket(lambda socket: "/terminals/" in socket.url) as opened:
            page.locator(".jp-LauncherCard").filter(has_text="Terminal").click()
        socket: WebSocket = opened.value
        socket.on("framereceived", self._record_output)
        page.locator(".jp-Terminal").click()

    def _record_output(self, frame: str | bytes) -> None:
        kind, *content = json.loads(frame)
        if kind == "stdout":
            self._pieces += content

    def run(self, line: str) -> str:
        """Type a line; return its output, once it has exited with 0."""
        begin, self._typed = len(self._pieces), self._typed + 1
        self._page.keyboard.type(f"{line}\n")
        self._page.keyboard.type(f"echo line $((1000 + {self._typed})) exited with $?\n")
        end = re.compile(rf"line {1000 + self._typed} exited with (\d+)")

        def ended() -> re.Match[str] | None:
            self._page.wait_for_timeout(100)  # reads the socket
            return end.search("".join(self._pieces[begin:]))

        found = eventually(ended, within=END_TIMEOUT_S, what=line)
        output = "".join(self._pieces[begin:])
        assert found is not None
        assert found[1] == "0", output
        return output


@pytest.fixture
def platform(start_platform: Callable[[], HubPlatform]) -> HubPlatform:
    """Run a new platform: examples are copied only to new homes."""
    return start_platform()


@pytest.mark.parametrize(
    "pause_s",
    [
        pytest.param(0, id="without pauses", marks=pytest.mark.timeout(1800)),
        pytest.param(
            USER_PAUSE_S,
            id="with the pauses of a user",
            marks=[pytest.mark.tier("long"), pytest.mark.timeout(3600)],
        ),
    ],
)
def test_readme_first_ten_minutes_have_the_described_results(
    pause_s: float, platform: HubPlatform, page_of: Callable[[str], Page], tmp_path: Path
) -> None:
    steps = readme_steps()
    assert list(steps) == [1, 2, 3, 4, 5, 6]

    # 1: log in, take half a GPU.
    bob, project = code_spans(steps[1])
    [share] = re.findall(r"\*\*([^*]+)\*\*\.", steps[1])
    bob_page, bob_client = page_of(bob), platform.client(bob)
    bob_page.goto(f"{platform.url}/hub/spawn")
    lab.choose_fraction(bob_page, share)
    lab.save_picture(bob_page, "form")
    lab.submit_spawn_form(bob_page)
    lab.wait_for_lab(bob_page)
    gate_files = [] if pause_s else [gate_training(platform, bob)]
    bob_page.wait_for_timeout(1000 * pause_s)

    # 2: run the notebook: six trainings, four run, two wait with a reason.
    [notebook] = code_spans(steps[2])
    lab.open_notebook(bob_page, platform.url, bob, notebook)
    lab.run_all_cells(bob_page)
    expect_states(bob_client, {"running": 4, "queued": 2})
    panel = bob_page.locator(".jp-OutputArea .runai-panel").first
    expect(panel.get_by_role("row").filter(has_text="job-1")).to_contain_text("%", timeout=90_000)
    expect(panel).to_contain_text("place 1 in the queue")
    lab.save_picture(bob_page, "lab-bob-over-quota")
    bob_page.wait_for_timeout(1000 * pause_s)

    # 3: patty does the same; exactly two of bob's jobs pause, and patty's run.
    [patty] = code_spans(steps[3])
    patty_page, patty_client = page_of(patty), platform.client(patty)
    lab.start_session(patty_page, platform.url, share)
    lab.wait_for_lab(patty_page)
    assert devices_of(bob_client) == devices_of(patty_client)
    gate_files += [] if pause_s else [gate_training(platform, patty)]
    lab.open_notebook(patty_page, platform.url, patty, notebook)
    lab.run_all_cells(patty_page)
    expect_states(patty_client, {"running": 2})
    expect_states(bob_client, {"running": 2, "paused": 2, "queued": 2})
    expect(panel).to_contain_text("paused")
    lab.save_picture(bob_page, "lab-bob-reclaimed")
    lab.save_picture(patty_page, "lab-patty")
    patty_page.wait_for_timeout(1000 * pause_s)

    # 4: patty's jobs end, bob's resume and print the same result.
    for gate_file in reversed(gate_files):
        gate_file.touch()
    expect_states(patty_client, {"succeeded": 2})
    expect_states(bob_client, {"succeeded": 6})
    assert sum(job.pauses > 0 for job in jobs_of(bob_client)) == 2
    assert len({final_line(bob_client, job.id) for job in jobs_of(bob_client)}) == 1
    for page in (bob_page, patty_page):
        expect(page.locator("#jp-main-statusbar")).to_contain_text("| Idle")
    bob_page.wait_for_timeout(1000 * pause_s)

    # 5: the terminal's programs are of bob's environment, and so are the commands; then cells.
    home = platform.data_dir / "users" / bob
    environment = UserEnvironment(home)
    terminal = Terminal(bob_page, platform.url, bob)
    paths = terminal.run("command -v runai python")
    assert f"{environment.path()[0]}/runai" in paths
    assert str(environment.python) in paths
    outputs = [terminal.run(line) for line in code_lines(steps[5])]
    assert "exp1 submitted" in outputs[0]
    assert "Done:" in outputs[2]
    assert "succeeded" in outputs[3]
    lab.save_picture(bob_page, "lab-terminal")
    load, submit, gpu_magic = [words for words in code_spans(steps[5]) if words.startswith("%")]
    lab.write_notebook(home / "cells.ipynb", [load, submit, f"{gpu_magic}\nprint('a cell')"])
    lab.open_notebook(bob_page, platform.url, bob, "cells.ipynb")
    lab.run_all_cells(bob_page)
    views = bob_page.locator(".runai-jobs")
    for view in (views.nth(0), views.nth(1)):
        expect(view).to_contain_text("succeeded", timeout=1000 * END_TIMEOUT_S)
    lab.save_picture(bob_page, "lab-cells")
    bob_page.wait_for_timeout(1000 * pause_s)

    # 6: the admin changes and creates a project.
    login, *changes = [words for words in code_spans(steps[6]) if words.startswith("runai ")]
    password = platform.password("admin")
    run_command(login.replace(README_URL, platform.url) + " --password-stdin", tmp_path, password)
    for change in changes:
        run_command(change, tmp_path)
    admin = platform.client("admin")
    assert admin.project("vision").quota == 4
    assert admin.project("nlp2").members == ["carol"]
    assert project == "vision"


def run_command(command: str, home: Path, stdin: str = "") -> None:
    """Run a command line outside JupyterLab, as a user with this home."""
    program, *words = shlex.split(command)
    assert program == "runai"
    subprocess.run(
        [sys.executable, "-m", "runai.hub_service.cli", *words],
        env={"HOME": str(home), "PATH": "/usr/bin:/bin"},
        input=stdin,
        text=True,
        check=True,
    )


def gate_training(platform: HubPlatform, user: str) -> Path:
    """Make the user's example wait, and short; return the file that releases it."""
    examples = platform.data_dir / "users" / user / "examples"
    gate_file, training = examples / "may-go-on", examples / "train_numpy.py"
    if PICTURES:
        gate_file.touch()  # the pictures show working jobs
        return gate_file
    original = training.rename(examples / "training.py")
    gated = GATED_TRAINING.format(
        learned=LEARNED, may_go_on=str(gate_file), training=str(original.absolute())
    )
    training.write_text(SHORTEN_TRAINING + gated)
    return gate_file


def jobs_of(client: Client) -> list[WorkloadView]:
    """Return the jobs of the client's user."""
    return [w for w in client.workloads(user=client.whoami().name) if w.kind == "job"]


def devices_of(client: Client) -> set[str]:
    """Return the devices of the user's session."""
    mine = client.workloads(user=client.whoami().name)
    sessions = [w for w in mine if w.kind == "session"]
    return {share.uuid for s in sessions for worker in s.workers for share in worker.devices}


def expect_states(client: Client, expected: dict[str, int]) -> None:
    """Wait until the user's jobs are in these states."""

    def are_as_expected() -> bool:
        jobs = jobs_of(client)
        seen = [(job.name, job.state, job.reason and job.reason.text) for job in jobs]
        assert Counter(job.state for job in jobs) == expected, seen
        return True

    eventually(are_as_expected, within=END_TIMEOUT_S)


def final_line(client: Client, job: str) -> str:
    """Return the last line of a training: its result."""
    return [line.text for line in client.logs(job)][-1]
