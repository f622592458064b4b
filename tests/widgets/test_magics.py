"""The magics in a real IPython shell against a real service with real processes."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading

import pytest
from IPython.core.error import UsageError

from runai.widgets import Job, Jobs
from runai.widgets.link import link
from runai.widgets.magics import _without_comment


def test_submit_magic_returns_the_job_of_a_script_at_once(notebook):
    bob = notebook("bob")

    job = bob("%runai_submit hello.py --gpus 0.5 --name exp1 -- --epochs 3").value

    assert isinstance(job, Job)
    assert (job.id, job.name, job.project) == ("vision/exp1", "exp1", "vision")
    assert bob("%runai_logs exp1 -f").out == "hello --epochs 3\n"
    assert job.wait().state == "succeeded"
    assert bob("%runai_logs exp1").out == "hello --epochs 3\n"


def test_cell_magic_submits_a_cell_as_a_program_stored_with_the_job(notebook, folder):
    bob = notebook("bob")

    cell = "import os, sys, beside\nprint(beside.NAME, os.getcwd(), sys.executable, sys.argv[1:])"
    job = bob(f"%%runai_submit --gpus 0.25 --name cell -- a 'b c'\n{cell}").value

    assert job.wait().state == "succeeded"
    assert list(job.lines()) == [
        f"the module beside the notebook {folder} {sys.executable} ['a', 'b c']"
    ]
    assert job.detail.source.strip() == cell


def test_submit_magic_passes_its_options_to_the_job(notebook):
    bob = notebook("bob")

    job = bob(
        "%runai_submit endless.py -g 0.25 --name opts -p vision --priority high --workers 2"
        " -e A=1 -e 'B=two words' --backoff-limit 3 --grace 2m --expected-runtime 90m --time 2h"
        " --saves"
    ).value

    detail = job.detail
    assert (detail.priority, detail.gpus, len(detail.workers)) == (75, 0.5, 2)
    assert detail.options == {"backoff_limit": 3, "grace_seconds": 120, "expected_runtime": 5400}
    assert detail.max_runtime == 7200
    assert detail.saves
    assert "saves its work when it is paused" in str(job.describe())


@pytest.mark.parametrize(
    ("option", "environment"), [("", "venv"), ("--no-environment", ".runai-env")]
)
def test_submit_magic_passes_on_the_notebooks_environment(
    notebook, monkeypatch, option, environment
):
    bob = notebook("bob")
    monkeypatch.setenv("VIRTUAL_ENV", "/venv")
    monkeypatch.setenv("HF_TOKEN", "secret")
    cell = "import os\nprint(os.environ['VIRTUAL_ENV'], os.environ.get('HF_TOKEN', '-'))"

    job = bob(f"%%runai_submit --name cell {option}\n{cell}").value

    assert job.wait().state == "succeeded"
    assert next(iter(job.lines())).endswith(f"/{environment} -")


def test_submit_magic_with_array_returns_its_jobs_in_one_view(notebook):
    bob = notebook("bob")

    jobs = bob("%runai_submit hello.py --gpus 0.25 --name sweep --array 3").value

    assert isinstance(jobs, Jobs)
    assert len(jobs) == 3
    assert [job.state for job in jobs.wait()] == ["succeeded"] * 3
    assert len(repr(jobs).splitlines()) == 3


def test_submit_magic_dry_run_stores_no_job(notebook):
    bob = notebook("bob")

    message = bob("%runai_submit hello.py --name dry --dry-run").value

    assert str(message).endswith("Nothing was submitted (dry run).")
    assert "dry" not in bob("%runai_list").value


def test_job_magics_suspend_resume_describe_and_delete_a_job(notebook, eventually):
    bob = notebook("bob")
    job = bob("%runai_submit endless.py --gpus 1 --name exp1 --grace 5").value
    eventually(lambda: job.state == "running")

    bob("%runai_suspend exp1")
    eventually(lambda: job.state == "suspended")
    bob("%runai_resume vision/exp1")
    eventually(lambda: job.state == "running")

    described = bob("%runai_describe exp1").value
    assert "endless.py" in described
    assert "History:" in described
    assert bob("%runai_delete exp1").value == "vision/exp1 is stopping."
    eventually(lambda: "exp1" not in bob("%runai_list").value)


def test_list_magic_shows_jobs_of_other_users_only_with_all(notebook):
    eve = notebook("eve")
    eve("%runai_submit hello.py -p vision --name of-eve --gpus 0.25")
    bob = notebook("bob")
    bob("%runai_submit hello.py --name of-bob --gpus 0.25")

    assert "of-eve" not in bob("%runai_list").value
    assert "of-eve" in bob("%runai_list --all").value


def interrupt_cell_when(condition, eventually) -> threading.Thread:
    """Press the notebook's stop button when the condition is true."""

    def press() -> None:
        eventually(condition)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=press)
    thread.start()
    return thread


def is_waiting_for_jobs() -> bool:
    """Return True if the cell waits for its jobs, after its message about the submission."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        if frame.f_code in {Job.wait.__code__, Jobs.wait.__code__}:
            return True
        frame = frame.f_back
    return False


def test_interrupt_of_a_waiting_cell_leaves_the_job_running(notebook, eventually):
    bob = notebook("bob")
    client = link().client
    stop_button = interrupt_cell_when(
        lambda: [w.state for w in client.workloads()] == ["running"] and is_waiting_for_jobs(),
        eventually,
    )

    output = bob("%runai_submit endless.py --name exp1 --gpus 1 --wait --grace 1")
    stop_button.join()

    assert output.out.splitlines()[0] == "Stopped waiting; the job goes on. %runai_list shows it."
    assert output.value.state == "running"


def test_gpu_magic_measures_a_cell_and_retains_its_variables(notebook, monkeypatch):
    bob = notebook("bob")
    bob("%runai_submit sleep --name session -- 600")
    monkeypatch.setenv("RUNAI_WORKLOAD", "vision/session")

    output = bob("%%gpu\nanswer = 6 * 7")

    assert re.search(r"\d+\.\d s", output.out)
    assert bob("answer").value == 42


def test_gpu_magic_refuses_a_cell_with_top_level_await(notebook, monkeypatch):
    bob = notebook("bob")
    bob("%runai_submit sleep --name session -- 600")
    monkeypatch.setenv("RUNAI_WORKLOAD", "vision/session")
    bob("import asyncio; ran = []")

    for cell in (
        "ran.append(1); await asyncio.sleep(0)",
        "%time ran.append(1)\nawait asyncio.sleep(0)",
    ):
        refused = bob(f"%%gpu\n{cell}")

        assert "Cells that await at the top cannot be measured" in refused.err
        assert "busy" not in refused.out
    assert bob("ran").value == []
    assert "busy" in bob("%%gpu\nasync def later():\n    await asyncio.sleep(0)").out
    assert "SyntaxError" in str(bob("%%gpu\n1 +"))


def test_gpu_magic_shows_the_error_of_a_failed_cell_once(notebook, monkeypatch):
    bob = notebook("bob")
    bob("%runai_submit sleep --name session -- 600")
    monkeypatch.setenv("RUNAI_WORKLOAD", "vision/session")

    output = bob("%%gpu\n1 / 0")

    assert (output.out + output.err).count("ZeroDivisionError: ") == 1
    assert "CellFailed" not in output.out + output.err


def test_gpu_magic_without_a_session_is_refused(notebook, monkeypatch):
    bob = notebook("bob")
    monkeypatch.delenv("RUNAI_WORKLOAD", raising=False)

    assert "without a GPU of the platform" in bob("%%gpu\n1").err
    assert "without a GPU of the platform" in bob("%runai_status").err


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        pytest.param("a.py -- --epochs 3  # three epochs", "a.py -- --epochs 3  ", id="at end"),
        pytest.param("a.py # it's a trial", "a.py ", id="with an apostrophe"),
        pytest.param("a.py --\t#", "a.py --\t", id="empty comment"),
        pytest.param("# all of it", "", id="only a comment"),
        pytest.param("a.py -- '#fff' \"a # b\" c\\#d", None, id="quoted hashes"),
        pytest.param('a.py -- "\\" # b" # c', 'a.py -- "\\" # b" ', id="escaped quote"),
    ],
)
def test_magic_line_ends_at_a_comment_but_not_at_a_quoted_hash(line, expected):
    assert _without_comment(line) == (line if expected is None else expected)


def test_magic_line_with_a_hash_inside_a_word_is_refused():
    with pytest.raises(UsageError, match="In b#c the # looks like a comment: quote the word"):
        _without_comment("a.py -- b#c d")


def test_submit_magic_refuses_python_before_a_script_with_a_hint(notebook):
    error = notebook("bob")("%runai_submit python hello.py --gpus 0.5").err

    assert "Leave out python: a script runs with this kernel's Python." in error


def test_magics_ignore_a_comment_behind_their_arguments(notebook):
    bob = notebook("bob")

    job = bob("%runai_submit hello.py --name noted -- --epochs 3  # it's enough").value

    assert job.detail.command[-2:] == ["--epochs", "3"]
    bob("%runai_list --all  # everybody's")
    assert bob("%runai_logs noted -f  # quick look").out == "hello --epochs 3\n"
    assert bob("%%runai_submit --name cell2  # a cell\nprint(1)").value.name == "cell2"


def test_magics_are_available_after_an_extension_reload_and_a_namespace_reset(notebook):
    bob = notebook("bob")

    for line in ("%reload_ext runai.widgets", "%reset -f", "%runai_submit hello.py --name kept"):
        bob(line)

    assert "kept" in str(bob("%runai_list").value)


def test_notebook_proxy_is_not_used_for_a_service_on_localhost(notebook, monkeypatch):
    for name in ("http_proxy", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "socks5h://127.0.0.1:9")

    assert "No workloads" in str(notebook("bob")("%runai_list").value)
