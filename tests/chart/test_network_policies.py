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

SPEC = WorkloadSpec("vision", "exp", "ana", "job", ("true",), gpus=MilliGpu(1000))
JOBS = {
    "one": SPEC,
    "part": replace(SPEC, gpus=MilliGpu(500)),
    "no GPU": replace(SPEC, gpus=MilliGpu(0)),
    "array": replace(SPEC, name="exp-3", array_index=3),
    "gang": replace(SPEC, workers=2, min_workers=2),
    "elastic": replace(SPEC, workers=2, elastic=True),
    "one elastic process": replace(SPEC, elastic=True, gpus_max=MilliGpu(4000)),
}
NOTEBOOK = {"app": "jupyterhub", "component": "singleuser-server", "release": "jhub"}
"""Labels that zero-to-jupyterhub sets on the pods of notebooks."""
DNS, SERVICE_PORT = ("UDP", 53), ("TCP", 8000)
PORTS = {"http": 8000, "alive": 8001}


class End(NamedTuple):
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


def is_peer(peer: Mapping[str, Any], end: End, home: str) -> bool:
    block = peer.get("ipBlock")
    if bool(block) != bool(end.address):
        return False
    if block:
        holes = [ip_network(each) for each in block.get("except", ())]
        address = ip_address(end.address)
        return address in ip_network(block["cidr"]) and not any(address in each for each in holes)
    namespaces = peer.get("namespaceSelector")
    name = {"kubernetes.io/metadata.name": end.namespace}
    is_in_namespace = end.namespace == home if namespaces is None else matches(namespaces, name)
    return is_in_namespace and matches(peer.get("podSelector", {}), end.labels)


class Policies:
    """All NetworkPolicies of a rendering, and the labels of the service's pods."""

    def __init__(self, *arguments: str) -> None:
        found = [o for o in yaml.safe_load_all(rendered(*arguments)) if o]
        self.network_policies = [o for o in found if o["kind"] == "NetworkPolicy"]
        pods = {
            o["metadata"]["name"]: End(
                o["metadata"]["namespace"], o["spec"]["template"]["metadata"]["labels"]
            )
            for o in found
            if o["kind"] in {"Deployment", "DaemonSet"}
        }
        self.service, self.agent = pods["runai"], pods["runai-agent"]

    def of(self, pod: End) -> Iterator[dict[str, Any]]:
        for policy in self.network_policies:
            spec = policy["spec"]
            if policy["metadata"]["namespace"] == pod.namespace and matches(
                spec["podSelector"], pod.labels
            ):
                yield policy

    def allow(self, source: End, target: End, port: tuple[str, int]) -> bool:
        return self._open(source, target, port, "egress", "to") and self._open(
            target, source, port, "ingress", "from"
        )

    def _open(self, pod: End, other: End, port: tuple[str, int], direction: str, key: str) -> bool:
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
            (each.get("protocol", "TCP"), PORTS.get(each["port"], each["port"])) == port
            for each in rule["ports"]
        )


def job(spec: WorkloadSpec, namespace: str) -> End:
    job_object = manifest(spec, PodTemplateSource("example/train"), api_url="http://runai")
    return End(namespace, job_object["spec"]["template"]["metadata"]["labels"])


def notebook(namespace: str) -> End:
    pod = V1Pod(
        metadata=V1ObjectMeta(labels=dict(NOTEBOOK)),
        spec=V1PodSpec(containers=[V1Container(name="notebook", image="example/notebook")]),
    )
    with_session(pod, SessionRequest.parse({"project": "vision", "gpus": "1"}))
    return End(namespace, pod.metadata.labels)


@pytest.fixture(scope="module", params=["runai", "jhub"], ids=["same namespace", "own namespace"])
def around(request: pytest.FixtureRequest) -> tuple[Policies, str]:
    """The chart's policies, and the namespace of notebooks and jobs."""
    return Policies("--set", f"jupyterhub.namespace={request.param}"), request.param


def test_every_job_pod_is_selected_only_by_the_network_policy_for_jobs(around):
    policies, where = around

    selecting = {shape: list(policies.of(job(spec, where))) for shape, spec in JOBS.items()}

    (policy,) = selecting["one"]
    assert selecting == {key: [policy] for key in JOBS}
    assert policy["metadata"]["name"] == "runai-jobs"
    assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]


def test_runai_policies_select_no_notebook(around):
    policies, where = around

    assert list(policies.of(notebook(where))) == []


def test_service_and_agent_pods_have_their_own_network_policies(around):
    policies, _ = around

    for pod, name in ((policies.service, "runai"), (policies.agent, "runai-agent")):
        assert [policy["metadata"]["name"] for policy in policies.of(pod)] == [name]


def test_jobs_reach_the_service_and_their_gang(around):
    policies, where = around
    gang_pod = job(JOBS["gang"], where)

    assert policies.allow(gang_pod, policies.service, SERVICE_PORT)
    assert policies.allow(gang_pod, gang_pod, ("TCP", 29500))
    assert policies.allow(gang_pod, End("kube-system", {"k8s-app": "kube-dns"}), DNS)


def test_network_policy_lets_jobs_reach_public_but_no_private_addresses(around):
    policies, where = around
    public = ["93.184.216.34", "172.32.0.1"]
    private = ["10.0.0.1", "172.16.0.1", "172.31.255.254", "192.168.7.7", "169.254.169.254"]
    ipv6 = ["2001:db8::1", "fd00:ec2::254"]

    assert public == [
        address
        for address in (*public, *private, *ipv6)
        if policies.allow(job(SPEC, where), End(address=address), ("TCP", 443))
    ]


@pytest.mark.parametrize(
    ("namespace", "labels"),
    [
        ("", NOTEBOOK),
        ("", {"app": "jupyterhub", "component": "hub"}),
        ("", {"app": "database"}),
        ("other", {"runai/workload": "exp"}),
        ("other", {"app.kubernetes.io/name": "runai", "app.kubernetes.io/component": "service"}),
    ],
    ids=["notebook", "hub", "unrelated pod", "job of another namespace", "another's service"],
)
def test_network_policy_blocks_traffic_between_jobs_and_unrelated_pods(around, namespace, labels):
    policies, where = around
    job_pod, other = job(SPEC, where), End(namespace or where, labels)

    assert not policies.allow(job_pod, other, ("TCP", 8888))
    assert not policies.allow(other, job_pod, ("TCP", 8888))


def test_network_policy_rules_of_an_admin_admit_more_job_traffic():
    policies = Policies(
        "--set-json",
        'jobs.networkPolicy.egress=[{"to": [{"podSelector": {"matchLabels": {"app": "minio"}}}]}]',
        "--set-json",
        'jobs.networkPolicy.ingress=[{"from": [{"podSelector": {"matchLabels": {"app": "ray"}}}]}]',
    )
    job_pod = job(SPEC, "runai")

    assert policies.allow(job_pod, End("runai", {"app": "minio"}), ("TCP", 9000))
    assert policies.allow(End("runai", {"app": "ray"}), job_pod, ("TCP", 6379))


def test_second_release_adds_its_own_jobs_policy():
    """Both select all jobs of the namespace, and each allows traffic to its own service."""
    first = Policies("--set", "jupyterhub.namespace=jhub")
    second = Policies("--set", "jupyterhub.namespace=jhub,clusterWide=false,nodePool=pool=a")

    names = [p["metadata"]["name"] for each in (first, second) for p in each.of(job(SPEC, "jhub"))]

    assert len(set(names)) == 2
