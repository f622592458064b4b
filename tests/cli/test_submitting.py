"""`runai submit` against a running service: what is stored, what is said, what is refused."""

from __future__ import annotations

import json
import sys

import pytest

PYTHON = sys.executable


def test_a_job_is_answered_at_once_and_runs_to_its_end(bob, eventually):
    result = bob("submit", "exp1", "--gpus", "0.5", "--", PYTHON, "-c", "print('hello')")

    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("job vision/exp1 submitted: ")
    eventually(lambda: bob.described("exp1")["state"] == "succeeded")
    assert bob("logs", "exp1").stdout == "hello\n"


def test_what_was_asked_for_is_what_is_stored(bob, tmp_path):
    (tmp_path / "train.py").touch()
    (tmp_path / "work").mkdir()

    bob(
        *("submit", "-g", "2", "-p", "vision", "exp1", "-e", "A=1", "--env", "B=x=y"),
        *(
            "--expected-runtime",
            "2h",
            "--backoff-limit",
            "3",
            "--grace",
            "5",
            "--priority",
            "high",
            "--workdir",
            "work",
        ),
        *("--", "sleep", "600"),
    )

    stored = bob.described("vision/exp1")
    assert {
        "gpus": 2,
        "command": ["sleep", "600"],
        "workdir": str(tmp_path / "work"),
        "backoff_limit": 3,
        "grace_seconds": 5,
        "expected_runtime": 7200,
        "priority": 75,
        "kind": "job",
        "preemptible": True,
        "user": "bob",
    }.items() <= stored.items()


SPEAKS = """
import json, os, pathlib, signal
signal.signal(signal.SIGUSR1, lambda *_: None)
name = os.environ["RUNAI_WORKER"]
told = {"worker": name, "gen": 1, "state": "running", "pid": os.getpid(), "samples_per_s": 99.5,
        "gpus": 2, "global_batch": 64, "steps": 1}
path = pathlib.Path(os.environ["RUNAI_ELASTIC_DIR"], "status", name.split("/")[1] + ".json")
path.write_text(json.dumps(told))
signal.pause()
"""


def test_an_elastic_job_says_on_how_many_gpus_it_trains_and_how_fast(bob, eventually):
    program = ("--", PYTHON, "-c", SPEAKS)
    result = bob("submit", "big", "--elastic", "--workers", "2", "--min-workers", "2", *program)

    assert (result.exit_code, result.stderr) == (0, "")

    def is_told() -> bool:  # one of the two may tell before the other
        said = [" ".join(line.split()) for line in bob("describe", "big").stdout.splitlines()]
        assert "Elastic: 2 of 2 to 2 GPUs; 64 samples an update in 1 step" in said, said
        assert "Speed: 99.5 samples/s on 2 GPUs" in said, said
        return True

    eventually(is_told)


def test_an_elastic_process_may_have_all_of_a_node(bob):
    bob("submit", "one", "--elastic", "-g", "2", "--", "sleep", "600")

    elastic = bob.described("one")["elastic"]
    assert (elastic["least"], elastic["most"]) == (1, 5)


def test_variables_reach_the_program(bob, eventually):
    program = "import os; print(os.environ['A'], os.environ['RUNAI_PROJECT'])"

    bob("submit", "exp1", "-e", "A=b=c", "--", PYTHON, "-c", program)

    eventually(lambda: bob("logs", "exp1").stdout == "b=c vision\n")


def test_a_name_may_be_left_out(bob):
    result = bob("submit", "-g", "1", "--", "sleep", "600")

    assert result.stdout.startswith("job vision/job-1 submitted: ")


def test_memory_instead_of_gpus(bob):
    bob("submit", "exp1", "--gpu-memory", "4G", "--", "sleep", "600")

    assert bob.described("exp1")["gpu_memory_mib"] == 4096


def test_an_interactive_workload_is_a_session(bob):
    result = bob("submit", "shell", "-g", "0.5", "--interactive", "--", "sleep", "600")

    assert result.stdout.startswith("session vision/shell submitted: ")
    assert not bob.described("shell")["preemptible"]


def test_an_array_is_several_jobs(bob, eventually):
    program = "import os; print(os.environ['RUNAI_ARRAY_INDEX'])"

    result = bob("submit", "sweep", "--array", "3", "--wait", "--", PYTHON, "-c", program)

    assert result.exit_code == 0
    assert [bob("logs", f"sweep-{i}").stdout for i in range(3)] == ["0\n", "1\n", "2\n"]


def test_without_a_gpu_it_is_said(bob):
    result = bob("submit", "exp1", "--", "sleep", "600")

    assert result.stdout.startswith("job vision/exp1 submitted: ")
    assert "exp1 asks for no GPU; --gpus 1 asks for one" in result.stdout


def test_more_gpus_than_any_node_has_is_accepted_and_said_at_once(bob):
    result = bob("submit", "exp1", "-g", "8", "--", "sleep", "600")

    assert result.exit_code == 0
    assert "exp1 waits: no node has 8 GPUs" in result.stdout
    assert bob.described("exp1")["reason"]["code"] == "no_such_node"


def test_a_dry_run_stores_nothing(bob):
    result = bob("submit", "exp1", "-g", "1", "--dry-run", "--", "sleep", "600")

    assert result.exit_code == 0
    assert result.stdout == "job vision/exp1 would be submitted and start at once\n"
    assert json.loads(bob("list", "-o", "json").stdout) == []


def test_a_dry_run_says_what_would_be_waited_for(bob):
    result = bob("submit", "exp1", "-g", "8", "--dry-run", "--", "sleep", "600")

    first, second = result.stdout.splitlines()
    assert first.startswith("job vision/exp1 would be submitted and wait")
    assert second.startswith("exp1 waits: no node has 8 GPUs")


@pytest.mark.parametrize("code", [0, 3])
def test_waiting_gives_the_programs_exit_code(bob, code):
    result = bob("submit", "exp1", "--wait", "--", PYTHON, "-c", f"raise SystemExit({code})")

    assert result.exit_code == code
    state = "failed" if code else "succeeded"
    assert result.stderr.splitlines()[-1] == f"vision/exp1 {state}: exit code {code}"


def test_waiting_prints_one_line_for_each_change_into_a_pipe(bob):
    result = bob("submit", "exp1", "-g", "1", "--wait", "--", PYTHON, "-c", "")

    states = [line.split()[1].rstrip(":") for line in result.stderr.splitlines()]
    assert states[-1] == "succeeded"
    assert len(states) == len(set(states))


def test_the_answer_as_json(bob):
    result = bob("submit", "exp1", "-g", "1", "-o", "json", "--", "sleep", "600")

    assert json.loads(result.stdout)["workloads"][0]["id"] == "vision/exp1"


@pytest.mark.parametrize(
    ("options", "sentence", "way_out"),
    [
        pytest.param(
            ["-p", "vison"], "There is no project vison.", "Yours: vision.", id="unknown-project"
        ),
        pytest.param(["-p", "nlp"], "You are not a member of project nlp.", "", id="not-a-member"),
        pytest.param(
            ["-g", "1.5"], "1.5 GPUs are not possible", "Ask for 1 or 2", id="one-and-a-half"
        ),
        pytest.param(
            ["-g", "3", "--interactive"],
            "its build quota is 2.5",
            "submit a job",
            id="over-build-quota",
        ),
        pytest.param(
            ["-g", "1", "--gpu-memory", "4G"],
            "Both GPUs and GPU memory are given.",
            "one of them",
            id="both-amounts",
        ),
        pytest.param(
            ["--workdir", "/no/such/place"], "There is no directory", "--workdir", id="no-directory"
        ),
    ],
)
def test_a_request_that_cannot_be_is_a_sentence_with_the_way_out(bob, options, sentence, way_out):
    result = bob("submit", "exp1", *options, "--", "sleep", "600")

    assert (result.exit_code, result.stdout) == (1, "")
    first, *rest = result.stderr.splitlines()
    assert first.startswith("Error: ")
    assert sentence in first
    assert way_out in " ".join(rest)
    assert json.loads(bob("list", "-o", "json").stdout) == []


def test_more_than_the_projects_limit_is_refused(as_user):
    result = as_user("eve")("submit", "exp1", "-g", "3", "--", "sleep", "600")

    assert result.exit_code == 1
    assert "more than project capped may ever hold: its limit is 2" in result.stderr


def test_a_name_that_is_taken_names_the_way_out(bob):
    bob("submit", "exp1", "--", "sleep", "600")

    result = bob("submit", "exp1", "--", "sleep", "600")

    assert result.exit_code == 1
    assert "vision already has a workload named exp1" in result.stderr
    assert "runai delete exp1 -p vision" in result.stderr


def test_a_missing_script_is_told_before_anything_is_sent(bob):
    result = bob("submit", "exp1", "--", "python", "train.py")

    assert result.exit_code == 1
    assert "There is no script train.py" in result.stderr
    assert json.loads(bob("list", "-o", "json").stdout) == []


def test_an_error_as_json(bob):
    result = bob("submit", "exp1", "-p", "vison", "-o", "json", "--", "sleep", "600")

    assert (result.exit_code, result.stdout) == (1, "")
    assert json.loads(result.stderr)["error"]["code"] == "unknown_project"
