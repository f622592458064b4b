"""The status line: text, title and level of a session or a user, from the overview's JSON."""

import subprocess
import sys
from datetime import timedelta
from typing import Any

import pytest

from overviews import NOON, overview, project, workload
from runai.hub_service.client.status_line import StatusLine, status_line
from runai.hub_service.wire.device_schemas import LimitView
from runai.hub_service.wire.schemas import (
    ExpectedStartView,
    IdleView,
    ReasonView,
    RunTimeView,
)

VISION = project("vision", allocated=2.5, waiting=2, may_submit=True)
OVER = project("vision", allocated=3, over_quota=0.5, may_submit=True)
NLP = project("nlp", quota=None, allocated=1, may_submit=True)
FOREIGN = project("audio", allocated=1)
LIMIT = LimitView(memory_mib=8192, tier="frameworks", badge="soft limit", why="")
HALF: dict[str, Any] = {
    "gpus": 0.5, "allocated": 0.5, "utilized": 0.17, "memory_used_mib": 3174, "limit": LIMIT,
    "preemptible": False, "kind": "session",
}  # fmt: skip
IDLE_SINCE = NOON - timedelta(minutes=12)
RELEASED_SOON = IdleView(
    since=IDLE_SINCE, text="idle for 12 min, its GPU goes to others in 8 min", takes="release",
    takes_at=NOON + timedelta(minutes=8),
)  # fmt: skip


def line_of(view, *projects, session="vision/lab", now=None):
    """Return the line as readers of the service's JSON get it."""
    views = [] if view is None else [view]
    body = overview(*views, projects=projects or (VISION,)).model_dump(mode="json")
    return status_line(body, user="bob", session=session, now=now)


@pytest.mark.parametrize(
    ("fields", "projects", "text", "level"),
    [
        pytest.param(HALF, (VISION,),
                     "½ GPU · 34 % · 3.1 of 8 GiB · vision 2.5 of 2.5 · 2 waiting", "ok",
                     id="ok-a-share"),
        pytest.param({**HALF, "gpus": 2, "allocated": 2, "utilized": 2, "limit": None}, (NLP,),
                     "2 GPUs · 100 % · 3.1 GiB used · nlp 1 of ∞", "ok",
                     id="ok-whole-gpus-without-a-quota"),
        pytest.param({**HALF, "utilized": None, "memory_used_mib": None}, (FOREIGN,), "½ GPU",
                     "ok", id="ok-not-measured-and-of-no-project-of-theirs"),
        pytest.param({**HALF, "simulated": True}, (NLP,),
                     "½ GPU · 34 % · 3.1 of 8 GiB · nlp 1 of ∞ (simulated)", "ok", id="simulated"),
        pytest.param({**HALF, "allocated": 0.333, "utilized": 0, "gpu_memory_mib": 8192}, (NLP,),
                     "8 GiB of a GPU · 0 % · 3.1 GiB used · nlp 1 of ∞", "ok",
                     id="ok-asked-for-by-memory"),
        pytest.param(HALF, (NLP, VISION, FOREIGN),
                     "½ GPU · 34 % · 3.1 of 8 GiB · vision 2.5 of 2.5 (+1 project) · 2 waiting",
                     "ok", id="ok-several-projects"),
        pytest.param({**HALF, "run_time": RunTimeView(ends_at=NOON + timedelta(minutes=9),
                                                      warns_at=NOON)}, (NLP,),
                     "½ GPU · 34 % · 3.1 of 8 GiB · its time limit ends it in 9 min · nlp 1 of ∞",
                     "ok", id="ok-ends-soon"),
        pytest.param({"allocated": 0, "gpus": 0}, (VISION,),
                     "no GPU · vision 2.5 of 2.5 · 2 waiting", "none", id="none"),
        pytest.param({"state": "suspended"}, (NLP,), "no GPU · nlp 1 of ∞", "none",
                     id="none-suspended"),
        pytest.param({**HALF, "allocated": 0, "state": "queued"}, (VISION,),
                     "waiting for ½ GPU · vision 2.5 of 2.5 · 2 waiting", "waiting", id="waiting"),
        pytest.param({"gpu_memory_mib": 512, "gpus": 0, "state": "queued"}, (NLP,),
                     "waiting for 512 MiB of a GPU · nlp 1 of ∞", "waiting",
                     id="waiting-asked-for-by-memory"),
        pytest.param({"gpus": 0, "state": "queued"}, (NLP,),
                     "waiting for its start · nlp 1 of ∞", "waiting", id="waiting-for-a-cpu"),
        pytest.param({**HALF, "idle": RELEASED_SOON}, (NLP,),
                     "½ GPU · idle 12 min, may be released in 8 min · 3.1 of 8 GiB · nlp 1 of ∞",
                     "idle", id="idle-and-released-soon"),
        pytest.param({**HALF, "idle": IdleView(since=IDLE_SINCE, text="idle for 12 min")}, (NLP,),
                     "½ GPU · idle 12 min · 3.1 of 8 GiB · nlp 1 of ∞", "idle", id="idle"),
        pytest.param({**HALF, "idle": IdleView(since=NOON, text="it ends", releasing=True)},
                     (NLP,), "½ GPU · it ends · 3.1 of 8 GiB · nlp 1 of ∞", "idle",
                     id="idle-and-released-now"),
        pytest.param({**HALF, "preemptible": True}, (OVER,),
                     "½ GPU · 34 % · 3.1 of 8 GiB · over quota, may be paused at any time"
                     " · vision 3 of 2.5", "over", id="over"),
        pytest.param(HALF, (OVER,), "½ GPU · 34 % · 3.1 of 8 GiB · vision 3 of 2.5", "ok",
                     id="ok-never-preempted-in-a-project-over-quota"),
        pytest.param({**HALF, "allocated": 0, "released": NOON}, (NLP,),
                     "GPU released · nlp 1 of ∞", "released", id="released"),
    ],
)  # fmt: skip
def test_line_of_a_session_has_gpu_use_and_quota(fields, projects, text, level):
    line = line_of(workload("lab", **fields), *projects)

    assert (line.text, line.level) == (text, level)


@pytest.mark.parametrize(
    ("fields", "projects", "text", "level"),
    [
        pytest.param(HALF, (VISION,), "½ GPU · 34 % · vision 2.5 of 2.5 · 2 waiting", "ok",
                     id="ok"),
        pytest.param({**HALF, "preemptible": True}, (OVER,),
                     "½ GPU · 34 % · over quota, may be paused at any time · vision 3 of 2.5",
                     "over", id="over"),
        pytest.param({"state": "queued"}, (VISION,), "no GPU · vision 2.5 of 2.5 · 2 waiting",
                     "waiting", id="waiting"),
        pytest.param({"user": "cy", "allocated": 1}, (NLP, FOREIGN), "no GPU · nlp 1 of ∞", "none",
                     id="none"),
    ],
)  # fmt: skip
def test_line_outside_of_a_session_has_the_users_gpus(fields, projects, text, level):
    line = line_of(workload("lab", **fields), *projects, session="")

    assert (line.text, line.level) == (text, level)


@pytest.mark.parametrize(
    ("fields", "projects", "title"),
    [
        pytest.param(
            {"state": "queued",
             "reason": ReasonView(code="quota", text="nlp uses 3 of its 2.5 GPUs.", position=2),
             "expected_start": ExpectedStartView(at=None, earliest=None, latest=None,
                                                 is_estimated=True, text="starts about 14:20")},
            (VISION,),
            "vision/lab\nnlp uses 3 of its 2.5 GPUs.\nplace 2 in the queue\nstarts about 14:20\n"
            "vision 2.5 of 2.5, 2 waiting", id="reason-of-a-wait"),
        pytest.param({**HALF, "idle": RELEASED_SOON}, (NLP,),
                     f"vision/lab\n{RELEASED_SOON.text}\nnlp 1 of ∞", id="idle"),
        pytest.param({**HALF, "simulated": True, "notice": "was warned"}, (OVER, NLP),
                     "vision/lab\nlab was warned\nvision 3 of 2.5, 0.5 over quota\nnlp 1 of ∞\n"
                     "(simulated)", id="several-projects-simulated"),
        pytest.param({"reason": ReasonView(code="x", text="a\x1b[2J\nb")}, (NLP,),
                     "vision/lab\na\\x1b[2J\\nb\nnlp 1 of ∞", id="no-escape-sequences"),
    ],
)  # fmt: skip
def test_title_has_reason_and_all_projects(fields, projects, title):
    assert line_of(workload("lab", **fields), *projects).title == title


def test_title_lists_at_most_ten_projects():
    projects = [project(f"p{number}", may_submit=True) for number in range(20)]

    assert line_of(workload("lab"), *projects).title.count("\n") == 10


def test_line_of_a_deleted_session_states_that_it_is_not_there():
    line = line_of(None)

    assert line.text.startswith("vision/lab is not there any more · vision 2.5 of 2.5")
    assert line.level == "none"


def test_line_without_an_overview_is_disconnected():
    assert status_line({}, user="bob") == StatusLine(
        "disconnected", "The GPU service does not answer.", "disconnected"
    )


def test_minutes_count_from_the_given_time():
    now = (NOON + timedelta(minutes=7, seconds=30)).timestamp()
    line = line_of(workload("lab", **HALF, idle=RELEASED_SOON), NLP, now=now)

    assert "idle 19 min, may be released in 30 s" in line.text


def test_import_loads_no_pydantic():
    program = (
        "import sys, runai.hub_service.client.status_line\n"
        "sys.exit(bool({'pydantic', 'httpx', 'click', 'IPython'} & set(sys.modules)))"
    )

    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
