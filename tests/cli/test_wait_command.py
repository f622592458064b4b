"""`runai wait` for workloads of a running service: exit codes and progress.

Ctrl-C, and another workload of the same name: test_workloads.py.
"""

from __future__ import annotations

import pytest

from runai.hub_service.client.transport import Transport

SLEEP = ("--", "sleep", "600")
UNSCHEDULABLE = ("--workers", "8", "-g", "1", *SLEEP)  # the cluster has 5 GPUs


def program_that_exits(code):
    return ("--", "sh", "-c", f"exit {code}")


@pytest.mark.parametrize(
    ("jobs", "code", "line"),
    [
        pytest.param(
            {"a": program_that_exits(0)}, 0, "vision/a succeeded: exit code 0", id="success"
        ),
        pytest.param({"a": program_that_exits(3)}, 3, "vision/a failed: exit code 3", id="failure"),
        pytest.param(
            {"a": program_that_exits(0), "b": program_that_exits(4), "c": program_that_exits(3)},
            4,
            "[3/3] vision/c failed: exit code 3",
            id="several",
        ),
        pytest.param(
            {"a": ("--array", "2", *program_that_exits("$RUNAI_ARRAY_INDEX"))},
            1,
            "vision/a failed: 1 failed, 1 succeeded",
            id="array",
        ),
    ],
)
def test_wait_command_exits_with_the_first_job_exit_code_other_than_0(bob, jobs, code, line):
    for name, options in jobs.items():
        bob("submit", name, *options)

    result = bob("wait", *jobs)

    assert (result.exit_code, result.stdout) == (code, "")
    assert result.stderr.splitlines()[-1] == line


def test_wait_command_refuses_an_unknown_job_before_waiting(bob):
    bob("submit", "runs", *SLEEP)

    result = bob("wait", "runs", "gone")

    assert result.exit_code == 1
    assert result.stderr.startswith("Error: There is no workload 'gone' that you may see.")


def test_wait_command_timeout_exits_with_124_and_leaves_the_jobs_running(bob, eventually):
    bob("submit", "done", *program_that_exits(0))
    bob("submit", "runs", *SLEEP)
    eventually(lambda: bob.describe("done")["state"] == "succeeded")

    result = bob("wait", "done", "runs", "--timeout", "1s")

    assert result.exit_code == 124
    assert result.stderr.splitlines()[-1] == (
        "The time is over: not waiting any longer for vision/runs. Running jobs go on;"
        " `runai delete vision/runs` stops them."
    )
    eventually(lambda: bob.describe("runs")["state"] == "running")


def test_wait_command_on_a_suspended_job_prints_the_resume_command(bob):
    bob("submit", "exp1", *UNSCHEDULABLE)
    bob("suspend", "exp1")

    result = bob("wait", "exp1", "--timeout", "1s")

    assert result.exit_code == 124
    assert result.stderr.splitlines()[0] == (
        "vision/exp1 suspended: suspended by bob; waiting for `runai resume vision/exp1`"
    )


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        pytest.param(
            ["gone"],
            ["Error: vision/gone was deleted before it was seen to finish."],
            id="single job",
        ),
        pytest.param(
            ["gone", "fails"],
            [
                "[1/2] vision/gone was deleted before it was seen to finish.",
                "[2/2] vision/fails failed: exit code 3",
            ],
            id="several jobs",
        ),
    ],
)
@pytest.mark.parametrize(
    "polls_before_delete", [0, 1], ids=["before the first poll", "between polls"]
)
def test_wait_command_exits_with_1_when_its_job_is_deleted(
    bob, eventually, monkeypatch, polls_before_delete, names, expected
):
    bob("submit", "gone", *UNSCHEDULABLE)
    bob("submit", "fails", *program_that_exits(3))
    eventually(lambda: bob.describe("fails")["state"] == "failed")
    send, polls = Transport.send, list[object]()

    def delete_before_poll(transport, call):
        if "changed_from" in call.params:
            polls.append(call)
            if len(polls) == polls_before_delete + 1:
                bob("delete", "gone")
        return send(transport, call)

    monkeypatch.setattr(Transport, "send", delete_before_poll)
    result = bob("wait", *names)

    assert result.exit_code == 1
    assert [line for line in result.stderr.splitlines() if line in expected] == expected
