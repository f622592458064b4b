"""Processes that a program leaves when it ends: they end with the job, which says so."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from labs import local_lab
from runai.hub_service.clusters.states.transition import ExitStatus
from starts import Start

STILL_WORKING = "were still working when the program ended, and were ended:"
PYTHON = Path(sys.executable).name

SPAWNS_PROCESSES = """
import os, subprocess, sys
for name in sys.argv[1:]:
    subprocess.Popen([name, "1000"], executable=SLEEP)
"""
"""A program that starts processes of these names, and ends."""

POOL = """
import multiprocessing, os, sys, time
if __name__ == "__main__":
    context = multiprocessing.get_context("forkserver")
    if sys.argv[1:] == ["works"]:
        context.Process(target=time.sleep, args=(1000,)).start()
    first = context.Process(target=time.sleep, args=(0,))
    first.start()
    first.join()
    os._exit(0)  # as after a crash: nothing is ended in order
"""
"""A program with a resource tracker and a fork server."""


def run_for_leftovers(start: Start, program: str, *words: str) -> str:
    """Run a program to its end, and return what it left."""
    path = start.path.parent / "program.py"
    path.write_text(program.replace("SLEEP", repr(shutil.which("sleep"))))
    start(sys.executable, "-I", "-S", str(path), *words)
    return start.final_exit().left


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["sleep"], "1 process was still working when the program ended, and was ended: sleep"),
        (
            ["/usr/bin/python", "sh", "python", "bash"],
            f"4 processes {STILL_WORKING} python (2), bash, sh",
        ),
        (
            ["ray::train(step=1)", "", "f\33[31m\u202e g", "x" * 99, "d", "e", "e"],
            f"7 processes {STILL_WORKING} e (2), d, f?[31m?, ray::train(step=1), sleep, and 1 more",
        ),
    ],
    ids=["one process", "several processes", "names chosen by the processes"],
)
def test_job_exit_message_names_the_leftover_processes_that_still_work(start, names, text):
    assert run_for_leftovers(start, SPAWNS_PROCESSES, *names) == text

    assert start.output() == f"runai: {text}\n"


@pytest.mark.parametrize("failure", ["sys.exit(3)", "os.kill(os.getpid(), 9)"])
def test_failed_program_names_its_leftover_processes(start, failure):
    assert run_for_leftovers(start, SPAWNS_PROCESSES + failure, "sleep").startswith(
        "1 process was still working"
    )


def test_leftover_process_message_begins_a_new_log_line(start):
    run_for_leftovers(start, f"{SPAWNS_PROCESSES}os.write(1, b'no newline')", "sleep")

    assert start.output().startswith("no newline\nrunai: 1 process was still working")


def test_fork_server_children_are_leftover_processes_but_the_fork_server_is_not(start):
    assert run_for_leftovers(start, POOL, "works").endswith(f"and was ended: {PYTHON}")


@pytest.mark.parametrize(
    "program",
    ["", POOL, "import subprocess\nsubprocess.Popen('cat', stdin=-1)"],
    ids=["no process", "resource tracker and fork server", "reader that ends with its writer"],
)
def test_background_processes_that_end_by_themselves_are_not_reported_as_leftovers(start, program):
    assert run_for_leftovers(start, program) == ""
    assert start.output() == ""


def test_job_exit_message_of_a_requested_stop_names_no_leftover_process(start, eventually):
    program = "trap 'exit 0' TERM; (trap '' TERM; echo ready; exec sleep 1000) & wait"
    start("sh", "-c", program, grace_seconds=0.2)
    eventually(lambda: start.printed("ready"))

    start.stop()

    assert ExitStatus(0, stop_requested=True, killed=True) == start.final_exit()


def test_program_ended_over_its_process_limit_names_no_leftover_processes(start):
    started = start("sh", "-c", "while sleep 0.02; do sleep 1000 & done", most_processes=10)

    assert started.final_exit().left == ""
    assert started.exit_file()["exit_code"] == -9


async def test_job_log_and_history_name_a_background_process_that_was_ended(tmp_path):
    program = (
        "mkfifo ready; nohup sh -c 'echo >ready; exec tail -f /dev/null' >n.log 2>&1 & "
        "read -r _ <ready; echo started"
    )
    message = "1 process was still working when the program ended, and was ended: tail"
    async with local_lab(tmp_path) as lab:
        spec = lab.job(command=("sh", "-c", program), workdir=str(tmp_path))
        await lab.started(spec)

        await lab.until(spec.id, "succeeded")

        history = [e.text for e in await lab.cluster.history(spec.id) if e.kind == "warning"]
        chunks = lab.cluster.logs(spec.id, worker=None, tail=None, follow=False)
        assert history == [message]
        assert [chunk.lines async for chunk in chunks] == [f"started\nrunai: {message}\n".encode()]
