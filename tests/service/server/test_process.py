"""The service as a process: it starts, exits cleanly or is killed; its jobs run on undisturbed.

The tests start it as JupyterHub does, but without a JupyterHub: the shared token acts for every
user.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress

import httpx
import psutil
import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families

from runai.hub_service.cli.doctor.platform_checks import check_ownership
from runai.hub_service.cli.framework.command_list import cli
from runai.hub_service.wire.errors import NotFound
from service_process import TOKEN
from waiting import eventually

IMPORTS_S = 120
"""Imports take half a minute on a busy machine."""

WAIT_FOR_FILE = """
import pathlib, sys, time
while not pathlib.Path({path!r}).exists():
    time.sleep(0.02)
"""


def test_jobs_go_on_while_the_service_is_down_and_are_adopted_again(service, tmp_path):
    """The service is stopped, then killed: one job runs on, the other ends while it is away."""
    success_file, failure_file = tmp_path / "go", tmp_path / "end"
    service.start()
    service.submit("goes-on", WAIT_FOR_FILE.format(path=str(success_file)))
    service.submit("ends", WAIT_FOR_FILE.format(path=str(failure_file)) + "sys.exit(3)")
    before = service.until("vision/goes-on", "running")
    service.until("vision/ends", "running")
    assert service.stop(signal.SIGTERM) == 0
    service.start()
    after = service.client.workload("vision/goes-on")
    assert service.stop(signal.SIGKILL) == -signal.SIGKILL
    failure_file.touch()
    service.start()
    ended = service.until("vision/ends", "succeeded", "failed")
    success_file.touch()
    done = service.until("vision/goes-on", "succeeded", "failed")

    assert (after.state, after.started) == ("running", before.started)
    assert (ended.state, ended.exit_code, ended.attempts) == ("failed", 3, 1)
    assert (done.state, done.attempts, done.exit_code) == ("succeeded", 1, 0)


def test_service_exits_when_its_hub_is_killed(service):
    """A shell that starts the service and waits stands in for the hub."""
    hub = service.popen("/bin/sh", "-c", '"$@" & echo "pid $!"; wait', "sh")
    service.client.overview()
    line = next(line for line in service.log.read_text().splitlines() if line.startswith("pid "))
    process = psutil.Process(int(line.split()[1]))
    hub.kill()
    hub.wait()

    exited, _ = psutil.wait_procs([process], timeout=60)
    assert exited == [process]


def test_service_exits_when_its_hub_died_during_the_services_start(service):
    """Imports take a second; the process that adopted the service meanwhile is not the hub.

    Linux gives no process the id 2**22: it stands for a hub that has exited.
    """
    orphan = service.popen(RUNAI_HUB_PID="4194304")

    assert orphan.wait(IMPORTS_S) == -signal.SIGTERM


def test_repeated_sigterm_during_shutdown_causes_no_ignored_exception(service):
    """A late signal would write to a closed descriptor, or to one reused by another file."""
    service.start()
    process = psutil.Process(service.process.pid)

    with suppress(psutil.NoSuchProcess):
        while process.status() != psutil.STATUS_ZOMBIE:
            process.send_signal(signal.SIGTERM)

    # After it has closed everything, signals have their default effect.
    assert service.process.wait(60) in {0, -signal.SIGTERM}
    assert "Exception ignored" not in service.log.read_text()


def test_second_service_waits_for_the_first_and_logs_its_process_id(service):
    """A second service beside a frozen one obeys SIGTERM.

    A third takes over when the first has exited.
    """
    service.start()
    data, first = service.directory / "data", service.process
    os.kill(first.pid, signal.SIGSTOP)
    second = service.popen()

    def has_logged_waiting() -> bool:
        return f"waiting: the cluster is open elsewhere (process {first.pid}, since" in (
            service.log.read_text()
        )

    eventually(has_logged_waiting, within=IMPORTS_S)
    [finding] = check_ownership(data)
    assert finding.verdict == "failure"
    assert f"process {first.pid}, since" in finding.text
    assert "which is frozen" in finding.text
    assert f"kill -CONT {first.pid}" in finding.mend
    os.kill(first.pid, signal.SIGCONT)
    [finding] = check_ownership(data)
    assert f"for which process {second.pid} waits" in finding.text
    second.terminate()
    assert second.wait(60) == 0
    assert [finding.verdict for finding in check_ownership(data)] == ["ok"]
    assert service.client.overview().nodes

    service.process = service.popen()
    lock = data / "cluster.lock"

    def waits() -> bool:
        # A waiting process has opened the lock's file and is blocked there.
        opened = psutil.Process(service.process.pid).open_files()
        return str(lock) in {file.path for file in opened}

    eventually(waits, within=IMPORTS_S)
    first.terminate()
    assert first.wait(60) == 0

    assert service.client.overview().nodes
    assert service.process.poll() is None


def test_killed_agent_is_restarted_and_no_secret_is_in_the_log(service):
    service.start()
    with pytest.raises(NotFound):
        service.client.workload("vision/nothing")
    service.submit("busy", "while True: pass")

    def measured() -> bool:
        return service.client.workload("vision/busy").measured.utilized is not None

    eventually(measured, within=IMPORTS_S)
    first = eventually(service.agent)
    secrets = {TOKEN, first.environ()["RUNAI_AGENT_TOKEN"]}
    first.kill()

    def new_agent() -> psutil.Process | None:
        running_agent = service.agent()
        return None if running_agent == first else running_agent

    second = eventually(new_agent)
    assert second is not None
    eventually(measured, within=IMPORTS_S)
    assert TOKEN not in second.environ().values()
    service.client.delete("vision/busy")
    eventually(lambda: service.client.workloads() == [])
    service.stop(signal.SIGTERM)
    log = service.log.read_text()
    assert "listening at" in log
    assert [secret for secret in secrets if secret in log] == []


@pytest.fixture
def node_agent(service, free_port) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Start the service without its own agent, and an agent with a node's token.

    This is the arrangement on other nodes.
    """
    service.environment["RUNAI_AGENT_TOKEN"] = "the-nodes-token"
    service.start()
    (node,) = service.client.nodes()
    metrics = f"127.0.0.1:{free_port()}"
    environment = {k: v for k, v in service.environment.items() if not k.startswith("JUPYTERHUB")}
    environment |= {"RUNAI_API_URL": service.client.url, "RUNAI_NODE": node.name}
    environment |= {"RUNAI_AGENT_METRICS": metrics, "RUNAI_HUB_TOKEN": ""}
    command = [sys.executable, "-P", "-m", "runai.hub_service.agent"]
    with (
        service.log.open("ab") as log,
        subprocess.Popen(command, env=environment, stdout=log, stderr=log) as agent,
    ):
        yield agent, metrics
        agent.terminate()


def test_remote_agent_buffers_reports_while_the_service_is_down(service, node_agent):
    agent, metrics = node_agent
    assert service.agent() is None
    service.submit("busy", "while True: pass")

    def measured() -> bool:
        return service.client.workload("vision/busy").measured.utilized is not None

    def report_count(counter: str) -> float:
        """Return the agent's number of reports: sent, waiting or dropped."""
        metrics_text = httpx.get(f"http://{metrics}/metrics", timeout=60).text
        (value,) = (
            sample.value
            for family in text_string_to_metric_families(metrics_text)
            for sample in family.samples
            if sample.name
            in {f"runai_agent_reports_{counter}", f"runai_agent_reports_{counter}_total"}
        )
        return value

    eventually(measured, within=IMPORTS_S, what="the job's utilization")
    service.stop(signal.SIGKILL)
    eventually(lambda: report_count("waiting") > 3, what="reports wait for the service")
    sent = report_count("sent")
    service.start()

    eventually(lambda: report_count("waiting") == 0, what="what waited is delivered")
    assert report_count("sent") > sent + 3
    assert report_count("dropped") == 0
    eventually(measured, what="its reports count again")
    assert agent.poll() is None


def test_doctor_reports_a_failure_if_chosen_mps_is_unavailable(service):
    """The doctor finds it even if the user's environment has only the service's address."""
    service.environment["RUNAI_GPU_SHARING"] = "mps"
    service.start()
    connection_settings = {"RUNAI_API_URL": service.client.url, "JUPYTERHUB_API_TOKEN": TOKEN}
    environment = dict.fromkeys(["RUNAI_GPU_SHARING"]) | connection_settings
    result = CliRunner(env=environment).invoke(cli, ["doctor", "-o", "json"], prog_name="runai")
    (finding,) = [each for each in json.loads(result.stdout) if each["subject"] == "MPS"]

    assert finding["verdict"] == "failure"
    assert finding["text"].startswith("chosen, but not available on GPU 0 of ")
    assert finding["text"].endswith("no device here can have it; workloads take turns there")
    assert "--gpu-sharing timeslice" in finding["mend"]


def test_service_logs_a_failed_start_in_one_line(service):
    """The tests of the settings cover each such sentence; here it ends a process."""
    exit_status = service.popen(RUNAI_POLICY="/no/such/policy").wait(IMPORTS_S)
    (line,) = service.log.read_text().splitlines()

    assert exit_status == 2
    assert "/no/such/policy cannot be read" in line
