"""The service as a process: it starts, leaves cleanly, is killed; its jobs never notice.

Started as JupyterHub starts it, but without a JupyterHub: the shared token speaks for every user.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress

import psutil
import pytest

from runai.hub_service.cli.ownership_examination import check_ownership
from runai.hub_service.errors import NotFound
from service_process import TOKEN, Service
from waiting import eventually

IMPORTS_S = 120
"""A busy machine imports for half a minute."""

WAIT_FOR_FILE = """
import pathlib, sys, time
while not pathlib.Path({path!r}).exists():
    time.sleep(0.02)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "SIGKILL"])
def test_a_job_goes_on_without_the_service_and_is_taken_over(service, tmp_path, number):
    go = tmp_path / "go"
    service.start()
    service.submit("exp1", WAIT_FOR_FILE.format(path=str(go)))
    before = service.until("vision/exp1", "running")
    status = service.stop(number)
    service.start()
    after = service.client.workload("vision/exp1")
    go.touch()
    done = service.until("vision/exp1", "succeeded", "failed")

    assert status == (0 if number == signal.SIGTERM else -signal.SIGKILL)
    assert (after.state, after.started) == ("running", before.started)
    assert (done.state, done.attempts, done.exit_code) == ("succeeded", 1, 0)


def test_a_job_that_ends_while_nobody_watches_is_known_to_have_ended(service, tmp_path):
    go = tmp_path / "go"
    service.start()
    service.submit("exp1", WAIT_FOR_FILE.format(path=str(go)) + "sys.exit(3)")
    service.until("vision/exp1", "running")
    service.stop(signal.SIGKILL)
    go.touch()
    service.start()
    done = service.until("vision/exp1", "succeeded", "failed")

    assert (done.state, done.exit_code, done.attempts) == ("failed", 3, 1)


def test_the_service_leaves_when_its_hub_is_killed(service):
    """The hub here is a shell that starts the service and waits."""
    hub = service.popen("/bin/sh", "-c", '"$@" & echo "pid $!"; wait', "sh")
    service.client.overview()
    line = next(line for line in service.log.read_text().splitlines() if line.startswith("pid "))
    process = psutil.Process(int(line.split()[1]))
    hub.kill()
    hub.wait()

    gone, _ = psutil.wait_procs([process], timeout=60)
    assert gone == [process]


def test_the_service_leaves_when_its_hub_died_before_it_could_look(service):
    """Imports take a second; whoever adopted it meanwhile is not the hub."""
    orphan = service.popen(RUNAI_HUB_PID="4194304")

    assert orphan.wait(IMPORTS_S) == -signal.SIGTERM


def test_a_second_service_waits_until_the_first_one_has_left(service):
    service.start()
    second = service.popen()
    pid = service.process.pid
    service.submit("exp1", "pass")
    service.until("vision/exp1", "succeeded")
    assert second.poll() is None
    service.stop(signal.SIGTERM)
    service.process = second

    assert service.until("vision/exp1", "succeeded").attempts == 1
    assert second.pid != pid


def test_who_asks_again_and_again_is_not_heard_by_a_loop_that_closes(service):
    """It would be told by a descriptor that is closed, or by then something else."""
    service.start()
    process = psutil.Process(service.process.pid)

    with suppress(psutil.NoSuchProcess):
        while process.status() != psutil.STATUS_ZOMBIE:
            process.send_signal(signal.SIGTERM)

    # When all is closed it is a process like any other.
    assert service.process.wait(60) in {0, -signal.SIGTERM}
    assert "Exception ignored" not in service.log.read_text()


def test_a_service_that_waits_for_another_leaves_when_it_is_told_to(service):
    service.start()
    second = service.popen()
    lock = service.directory / "data" / "cluster.lock"

    def waits() -> bool:
        # A process that waits has opened the lock's file and got no further.
        return str(lock) in {file.path for file in psutil.Process(second.pid).open_files()}

    eventually(waits, within=IMPORTS_S)
    second.send_signal(signal.SIGTERM)

    assert second.wait(60) == 0
    assert service.client.overview().nodes


def test_a_service_that_waits_for_a_frozen_one_says_so_and_the_doctor_names_it(service):
    service.start()
    data, frozen = service.directory / "data", service.process.pid
    os.kill(frozen, signal.SIGSTOP)
    second = service.popen()

    def told() -> bool:
        return f"waits: the cluster is open elsewhere (process {frozen}, since" in (
            service.log.read_text()
        )

    eventually(told, within=IMPORTS_S)
    [found] = check_ownership(data)
    assert (found.verdict, f"process {frozen}, since" in found.text) == ("failure", True)
    assert "which is frozen" in found.text
    assert f"kill -CONT {frozen}" in found.mend
    os.kill(frozen, signal.SIGCONT)
    [found] = check_ownership(data)
    assert f"for which process {second.pid} waits" in found.text
    second.terminate()
    assert second.wait(60) == 0
    assert [found.verdict for found in check_ownership(data)] == ["ok"]


def test_the_agent_is_started_measures_and_is_started_again(service):
    service.start()
    service.submit("busy", "while True: pass")

    def measured() -> bool:
        return service.client.workload("vision/busy").utilized is not None

    eventually(measured, within=IMPORTS_S)
    first = service.agent()
    first.kill()

    def another() -> psutil.Process | None:
        found = service.agent()
        return None if found == first else found

    second = eventually(another)

    eventually(measured, within=IMPORTS_S)
    assert second is not None
    assert TOKEN not in second.environ().values()


def test_no_secret_is_in_the_log(service):
    service.start()
    with pytest.raises(NotFound):
        service.client.workload("vision/nothing")

    def secret_of_the_agent() -> str | None:
        found = service.agent()  # it has no environment in the moment in which it begins
        return found.environ().get("RUNAI_AGENT_TOKEN") if found else None

    secret = eventually(secret_of_the_agent)
    service.stop(signal.SIGTERM)

    log = service.log.read_text()
    assert "listening at" in log
    assert TOKEN not in log
    assert secret not in log


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"RUNAI_DATA_DIR": ""}, "RUNAI_DATA_DIR is not set."),
        ({"RUNAI_SIMULATE": "many"}, "RUNAI_SIMULATE is 'many'."),
        ({"RUNAI_PROJECTS": "/no/such/file"}, "/no/such/file cannot be read"),
        ({"RUNAI_POLICY": "/no/such/policy"}, "/no/such/policy cannot be read"),
    ],
    ids=["no data directory", "no number", "no file", "no policy"],
)
def test_what_keeps_it_from_starting_is_one_sentence(tmp_path, free_port, environment, said):
    service = Service(tmp_path, free_port())
    status = service.popen(**environment).wait(IMPORTS_S)
    log = service.log.read_text().splitlines()

    assert status == 2
    assert len(log) == 1
    assert said in log[0]
