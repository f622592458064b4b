"""The service as a process over a cluster: it schedules and answers, one leader of several."""

from __future__ import annotations

import signal
import socket
from functools import partial

import httpx
import pytest

from clusters.kubernetes.test_leader_election import holder
from control_plane.lab import allow_jobs
from control_plane.objects import pod
from restarted_under_load import delete_workload, running_clients, submit_workload, suspend_workload
from runai.hub_service.client import Client
from runai.hub_service.wire.errors import Unavailable
from runai.hub_service.wire.workload_request import SubmitRequest
from service_process import STARTS_S, TOKEN, Service, kubernetes_service

pytestmark = pytest.mark.kubernetes

PODS = "/api/v1/namespaces/runai/pods"

SILENT_API_KUBECONFIG = """
clusters: [{name: silent, cluster: {server: "http://127.0.0.1:%d"}}]
contexts: [{name: silent, context: {cluster: silent, user: nobody}}]
current-context: silent
users: [{name: nobody, user: {token: none}}]
"""


@pytest.fixture
def start_service(lab, kubeconfig, free_port, tmp_path):
    allow_jobs(lab.plane, lab.namespace.name)
    lab.node("gpu-0", gpus=1)
    begun: list[Service] = []

    def start(*, port: int = 0, **settings: str) -> Service:
        place = tmp_path / str(len(begun))
        port = port or free_port()
        begun.append(kubernetes_service(place, kubeconfig, lab.namespace.name, port, **settings))
        return begun[-1]

    yield start
    for service in begun:
        service.end()


def job(name: str) -> SubmitRequest:
    return SubmitRequest(name=name, owner="ana", command=["python", "train.py"], gpus=1)


def test_second_job_waits_with_a_reason_until_the_first_is_deleted(start_service, lab, eventually):
    service = start_service()
    service.client.submit(job("one"))
    service.client.submit(job("two"))
    eventually(lambda: service.client.workload("vision/one").state == "running")

    def waits_for_the_gpu() -> bool:
        two = service.client.workload("vision/two")
        return two.state == "queued" and "1 of 1 GPU is in use" in str(two.reason)

    eventually(waits_for_the_gpu)
    assert [n.name for n in service.client.nodes()] == ["gpu-0"]
    (pod,) = lab.namespace.pods()
    assert pod["metadata"]["labels"]["runai/workload"] == "one"

    service.client.delete("vision/one")
    eventually(lambda: service.client.workload("vision/two").state == "running")


@pytest.mark.postgresql
def test_leader_scheduler_with_an_unreachable_usage_ledger_runs_without_history(
    start_service, eventually, tmp_path
):
    service = start_service(RUNAI_LEDGER=f"postgresql://ledger@/ledger?host={tmp_path}")
    service.client.submit(job("one"))

    eventually(lambda: service.client.workload("vision/one").state == "running")
    ready = httpx.get(f"{service.client.url}health/ready")
    assert (ready.status_code, ready.json()) == (200, {"status": "ready", "without": "history"})
    assert service.stop(signal.SIGTERM) == 0


@pytest.mark.timeout(900)  # five starts of a service
def test_rolling_scheduler_restart_under_load_loses_and_repeats_no_acknowledged_call(
    start_service, eventually, free_port
):
    # A follower listens on no port: both have the port to which requests go.
    port = free_port()
    leader, follower = start_service(port=port), start_service(port=port)
    actions = [(submit_workload, TOKEN)] * 2 + [
        (suspend_workload, TOKEN),
        (delete_workload, TOKEN),
    ]

    with running_clients(leader.client.url, actions) as acknowledged:

        def has_done(times: int) -> bool:
            submitted, suspended, deleted, _ = acknowledged.counts()
            return submitted >= 6 * times and min(suspended, deleted) >= 2 * times

        eventually(lambda: has_done(1), within=STARTS_S)
        leader, follower = sorted(
            (leader, follower), key=lambda found: "leader; listening" not in found.log.read_text()
        )
        for times, stop_signal in enumerate(
            (signal.SIGTERM, signal.SIGKILL, signal.SIGTERM), start=2
        ):
            leader.stop(stop_signal)
            leader, follower = follower, start_service(port=port)
            eventually(partial(has_done, times), within=STARTS_S)

    eventually(
        lambda: {w.id for w in leader.client.workloads()} == acknowledged.remaining, within=60
    )
    states = {w.id: str(w.state) for w in leader.client.workloads()}
    assert acknowledged.contradictions(states) == []


def test_scheduler_service_stopped_before_it_serves_ends_at_once_and_frees_the_lease(
    start_service, lab, eventually, free_port
):
    port = free_port()
    with socket.create_server(("127.0.0.1", port)):  # it waits for its port
        first = start_service(port=port)
        eventually(lambda: holder(lab), within=STARTS_S, what="the service leads")

        assert first.stop(signal.SIGTERM) == 0

    assert holder(lab) == ""


def test_scheduler_service_stopped_while_its_api_server_is_silent_ends_at_once(
    start_service, tmp_path, eventually
):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        kubeconfig = tmp_path / "silent.yaml"
        kubeconfig.write_text(SILENT_API_KUBECONFIG % silent.getsockname()[1])
        service = start_service(KUBECONFIG=str(kubeconfig))
        eventually(lambda: "waits to become the leader" in service.log.read_text(), within=STARTS_S)

        assert service.stop(signal.SIGTERM) == 0


def test_leader_pod_of_the_scheduler_alone_gets_requests_and_its_successor_resumes(
    start_service, lab, eventually, free_port
):
    port = free_port()
    for name in ("service-0", "service-1"):
        metadata = {"name": name, "labels": {"runai/leads": "true"}}
        body = {"metadata": metadata, "spec": pod(name)["spec"] | {"schedulerName": "nobody's"}}
        lab.plane.request("POST", PODS, body)

    def leaders() -> list[str]:
        found = lab.plane.request("GET", f"{PODS}?labelSelector=runai/leads=true")["items"]
        return [each["metadata"]["name"] for each in found]

    first = start_service(RUNAI_POD="service-0")
    eventually(
        lambda: first.client.overview() and leaders() == ["service-0", "service-1"], within=STARTS_S
    )
    first.client.submit(job("one"))
    eventually(lambda: first.client.workload("vision/one").state == "running")
    second = start_service(RUNAI_POD="service-1", RUNAI_ALIVE_PORT=str(port))
    # After any ending of its last container: it waits, is alive, and gets no requests.
    eventually(lambda: leaders() == ["service-0"], within=STARTS_S)
    assert httpx.get(f"http://127.0.0.1:{port}/", trust_env=False, timeout=60).status_code == 200

    with (
        Client(second.client.url, TOKEN, patience_s=0) as impatient,
        pytest.raises(Unavailable),  # a follower does not listen
    ):
        impatient.overview()

    assert first.stop(signal.SIGTERM) == 0
    eventually(lambda: leaders() == ["service-1"], within=STARTS_S)
    assert second.client.workload("vision/one").state == "running"
    for name in ("service-0", "service-1"):
        lab.forget(f"{PODS}/{name}?gracePeriodSeconds=0")
