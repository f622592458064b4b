"""The chart's NetworkPolicies select the created pods, and allow exactly the required traffic.

Evaluated as Kubernetes defines them; no network enforces them here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from ipaddress import ip_address, ip_network
from typing import Any, NamedTuple

import pytest
import yaml
from kubernetes_asyncio.client import V1Container, V1ObjectMeta, V1Pod, V1PodSpec

from control_plane.chart import rendered
from runai.hub_service.clusters.kubernetes.objects.job_manifest import PodTemplateSource, manifest
from runai.hub_service.model.records import WorkloadSpec
from runai.hub_service.scheduler.model.quantity import MilliGpu
from runai.spawner.pod import with_session
from runai.spawner.session_request import SessionRequest

pytestmark = pytest.mark.kubernetes

JOB_SPEC = WorkloadSpec("vision", "exp", "ana", "job", ("true",), gpus=MilliGpu(1000))
JOBS = {
    "one GPU": JOB_SPEC,
    "half a GPU": replace(JOB_SPEC, gpus=MilliGpu(500)),
    "no GPU": replace(JOB_SPEC, gpus=MilliGpu(0)),
    "array": replace(JOB_SPEC, name="exp-3", array_index=3),
    "gang": replace(JOB_SPEC, workers=2, min_workers=2),
    "elastic": replace(JOB_SPEC, workers=2, elastic=True),
    "elastic process on one pod": replace(JOB_SPEC, elastic=True, gpus_max=MilliGpu(4000)),
}
NOTEBOOK_LABELS = {"app": "jupyterhub", "component": "singleuser-server", "release": "jhub"}
"""Labels that zero-to-jupyterhub sets on the pods of notebooks."""
DNS_PORT, SERVICE_PORT = ("UDP", 53), ("TCP", 8000)
NAMED_PORTS = {"http": 8000, "alive": 8001}


class Endpoint(NamedTuple):
    """One end of a connection: a pod of a namespace, or an address outside."""

    namespace: str = ""
    labels: Mapping[str, str] = {}
    address: str = ""


def matches(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    has_labels = selector.get("matchLabels", {}).items() <= labels.items()
    return has_labels and all(
        labels.get(rule["key"]) in rule["values"]
        if rule["operator"] == "In"
        else {"Exists": rule["key"] in labels}[rule["operator"]]
        for rule in selector.get("matchExpressions", ())
    )


def is_peer(peer: Mapping[str, Any], end: Endpoint, own: str) -> bool:
    block = peer.get("ipBlock")
    if bool(block) != bool(end.address):
        return False
    if block:
        holes = [ip_network(cidr) for cidr in block.get("except", ())]
        address = ip_address(end.address)
        return address in ip_network(block["cidr"]) and not any(address in hole for hole in holes)
    namespaces = peer.get("namespaceSelector")
    name = {"kubernetes.io/metadata.name": end.namespace}
    is_in_namespace = end.namespace == own if namespaces is None else matches(namespaces, name)
    return is_in_namespace and matches(peer.get("podSelector", {}), end.labels)


class Policies:
    """All NetworkPolicies of a rendering, and the labels of the service's pods."""

    def __init__(self, *arguments: str) -> None:
        found = [o for o in yaml.safe_load_all(rendered(*arguments)) if o]
        self.network_policies = [o for o in found if o["kind"] == "NetworkPolicy"]
        pods = {
            o["metadata"]["name"]: Endpoint(
                o["metadata"]["namespace"], o["spec"]["template"]["metadata"]["labels"]
            )
            for o in found
            if o["kind"] in {"Deployment", "DaemonSet"}
        }
        self.service, self.agent = pods["runai"], pods["runai-agent"]

    def of(self, pod: Endpoint) -> Iterator[dict[str, Any]]:
        for policy in self.network_policies:
            spec = policy["spec"]
            if policy["metadata"]["namespace"] == pod.namespace and matches(
                spec["podSelector"], pod.labels
            ):
                yield policy

    def allow(self, source: Endpoint, target: Endpoint, port: tuple[str, int]) -> bool:
        return self._open(source, target, port, "egress", "to") and self._open(
            target, source, port, "ingress", "from"
        )

    def _open(
        self, pod: Endpoint, other: Endpoint, port: tuple[str, int], direction: str, key: str
    ) -> bool:
        rules = [policy["spec"][direction] for policy in self.of(pod)]
        return not rules or any(
            self._is_port(rule, port)
            and (key not in rule or any(is_peer(p, other, pod.namespace) for p in rule[key]))
            for policy_rules in rules
            for rule in policy_rules
        )

    @staticmethod
    def _is_port(rule: Mapping[str, Any], port: tuple[str, int]) -> bool:
        return "ports" not in rule or any(
            (p.get("protocol", "TCP"), NAMED_PORTS.get(p["port"], p["port"])) == port
            for p in rule["ports"]
        )


def job(spec: WorkloadSpec, namespace: str) -> Endpoint:
    job_object = manifest(spec, PodTemplateSource("example/train"), api_url="http://runai")
    return Endpoint(namespace, job_object["spec"]["template"]["metadata"]["labels"])


def notebook(namespace: str) -> Endpoint:
    pod = V1Pod(
        metadata=V1ObjectMeta(labels=dict(NOTEBOOK_LABELS)),
        spec=V1PodSpec(containers=[V1Container(name="notebook", image="example/notebook")]),
    )
    with_session(pod, SessionRequest.parse({"project": "vision", "gpus": "1"}))
    return Endpoint(namespace, pod.metadata.labels)


@pytest.fixture(
    scope="module", params=["runai", "jhub"], ids=["same namespace", "namespace of the hub"]
)
def policies_and_namespace(request: pytest.FixtureRequest) -> tuple[Policies, str]:
    """The chart's policies, and the namespace of notebooks and jobs."""
    return Policies("--set", f"jupyterhub.namespace={request.param}"), request.param


def test_every_job_pod_is_selected_only_by_the_network_policy_for_jobs(policies_and_namespace):
    policies, namespace = policies_and_namespace

    by_shape = {shape: list(policies.of(job(spec, namespace))) for shape, spec in JOBS.items()}

    (policy,) = by_shape["one GPU"]
    assert by_shape == {shape: [policy] for shape in JOBS}
    assert policy["metadata"]["name"] == "runai-jobs"
    assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]


def test_runai_policies_select_no_notebook(policies_and_namespace):
    policies, namespace = policies_and_namespace

    assert list(policies.of(notebook(namespace))) == []


def test_service_and_agent_pods_have_their_own_network_policies(policies_and_namespace):
    policies, _ = policies_and_namespace

    for pod, name in ((policies.service, "runai"), (policies.agent, "runai-agent")):
        assert [policy["metadata"]["name"] for policy in policies.of(pod)] == [name]


def test_jobs_reach_the_service_and_their_gang(policies_and_namespace):
    policies, namespace = policies_and_namespace
    gang_pod = job(JOBS["gang"], namespace)

    assert policies.allow(gang_pod, policies.service, SERVICE_PORT)
    assert policies.allow(gang_pod, gang_pod, ("TCP", 29500))  # torchrun's port
    assert policies.allow(gang_pod, Endpoint("kube-system", {"k8s-app": "kube-dns"}), DNS_PORT)


def test_network_policy_lets_jobs_reach_public_but_no_private_addresses(policies_and_namespace):
    policies, namespace = policies_and_namespace
    public = ["93.184.216.34", "172.32.0.1"]  # the second is just above a private range
    private = ["10.0.0.1", "172.16.0.1", "172.31.255.254", "192.168.7.7", "169.254.169.254"]
    ipv6 = ["2001:db8::1", "fd00:ec2::254"]

    assert public == [
        address
        for address in (*public, *private, *ipv6)
        if policies.allow(job(JOB_SPEC, namespace), Endpoint(address=address), ("TCP", 443))
    ]


@pytest.mark.parametrize(
    ("other_namespace", "labels"),
    [
        ("", NOTEBOOK_LABELS),
        ("", {"app": "jupyterhub", "component": "hub"}),
        ("", {"app": "database"}),
        ("other", {"runai/workload": "exp"}),
        ("other", {"app.kubernetes.io/name": "runai", "app.kubernetes.io/component": "service"}),
    ],
    ids=[
        "notebook",
        "hub",
        "unrelated pod",
        "job of another namespace",
        "service of another release",
    ],
)
def test_network_policy_blocks_traffic_between_jobs_and_unrelated_pods(
    policies_and_namespace, other_namespace, labels
):
    policies, namespace = policies_and_namespace
    job_pod, other = job(JOB_SPEC, namespace), Endpoint(other_namespace or namespace, labels)

    assert not policies.allow(job_pod, other, ("TCP", 8888))
    assert not policies.allow(other, job_pod, ("TCP", 8888))


def test_network_policy_rules_of_an_admin_admit_more_job_traffic():
    policies = Policies(
        "--set-json",
        'jobs.networkPolicy.egress=[{"to": [{"podSelector": {"matchLabels": {"app": "minio"}}}]}]',
        "--set-json",
        'jobs.networkPolicy.ingress=[{"from": [{"podSelector": {"matchLabels": {"app": "ray"}}}]}]',
    )
    job_pod = job(JOB_SPEC, "runai")

    assert policies.allow(job_pod, Endpoint("runai", {"app": "minio"}), ("TCP", 9000))
    assert policies.allow(Endpoint("runai", {"app": "ray"}), job_pod, ("TCP", 6379))


def test_second_release_adds_its_own_jobs_policy():
    """Both policies select all jobs, and each allows traffic to the service of its release."""
    first = Policies("--set", "jupyterhub.namespace=jhub")
    second = Policies("--set", "jupyterhub.namespace=jhub,clusterWide=false,nodePool=pool=a")

    job_pod = job(JOB_SPEC, "jhub")
    names = [p["metadata"]["name"] for each in (first, second) for p in each.of(job_pod)]

    assert len(set(names)) == 2
