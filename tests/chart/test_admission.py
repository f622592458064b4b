"""The chart's admission policies on a real API server: visible devices, protected annotations."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from control_plane.calls import ApiRefused
from control_plane.lab import ClusterLab
from control_plane.objects import pod
from control_plane.plane import ControlPlane

pytestmark = pytest.mark.kubernetes

VARIABLE = "NVIDIA_VISIBLE_DEVICES"
DRY = "/api/v1/namespaces/default/pods?dryRun=All"
STRATEGIC = "application/strategic-merge-patch+json"
PART = "the part's"


def container(name: str, amounts: dict[str, str] | None = None, **fields: Any) -> dict[str, Any]:
    limits = {"resources": {"limits": amounts}} if amounts is not None else {}
    return {"name": name, "image": "example/cuda", **limits, **fields}


def seen(containers: list[dict[str, Any]]) -> dict[str, str | None]:
    """Return the variable's value in each container; None: the device plugin sets it."""
    found: dict[str, str | None] = {}
    for each in containers:
        variable = next((e for e in each.get("env", ()) if e["name"] == VARIABLE), None)
        found[each["name"]] = (
            None if variable is None else PART if "valueFrom" in variable else variable["value"]
        )
    return found


def of_pod(containers: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    annotations = fields.pop("annotations", {})
    return pod("p", 0, annotations=annotations, **{"containers": containers, **fields})


GPU, MIG = "nvidia.com/gpu", "nvidia.com/mig-1g.5gb"
ONE_CONTAINER = {
    "nothing": ({}, "void"),
    "a GPU": ({"limits": {GPU: "1"}}, None),
    "a part by MIG": ({"limits": {MIG: "1"}}, None),
    "no GPU": ({"limits": {GPU: "0"}}, "void"),
    "no GPU in thousands": ({"limits": {GPU: "0k"}}, "void"),
    "no GPU in both": ({"limits": {GPU: "0"}, "requests": {GPU: "0"}}, "void"),
    "no part by MIG": ({"limits": {MIG: "0"}}, "void"),
    "no GPU and a part by MIG": ({"limits": {GPU: "0", MIG: "1"}}, None),
    "CPU and another's device": ({"limits": {"cpu": "1", "example.com/fpga": "1"}}, "void"),
}


@pytest.mark.parametrize(("resources", "expected"), ONE_CONTAINER.values(), ids=ONE_CONTAINER)
def test_container_sees_no_device_unless_it_requests_one(
    plane: ControlPlane, resources: dict[str, Any], expected: str | None
):
    made = plane.request("POST", DRY, of_pod([container("main", resources=resources)]))

    assert seen(made["spec"]["containers"]) == {"main": expected}


def test_gpu_requests_without_limits_are_refused(plane: ControlPlane):
    asking = container("main", resources={"requests": {GPU: "1"}})

    with pytest.raises(ApiRefused, match="Limit must be set"):
        plane.request("POST", DRY, of_pod([asking]))


def test_sidecar_of_a_gpu_container_sees_no_device(plane: ControlPlane):
    made = plane.request(
        "POST",
        DRY,
        of_pod(
            [container("main", {GPU: "1"}), container("side", env=[{"name": "A", "value": "b"}])],
            initContainers=[container("before"), container("checks", {GPU: "1"})],
        ),
    )["spec"]

    assert seen(made["containers"]) == {"main": None, "side": "void"}
    assert seen(made["initContainers"]) == {"before": "void", "checks": None}


def test_containers_of_a_gpu_fraction_pod_see_its_gpu_unless_their_variable_is_set(
    plane: ControlPlane,
):
    own = container("own", env=[{"name": VARIABLE, "value": "none"}])
    made = plane.request(
        "POST",
        DRY,
        of_pod(
            [container("main", {GPU: "0"}), own],
            initContainers=[container("before")],
            annotations={"gpu-fraction": "0.5"},
        ),
    )["spec"]

    assert seen(made["containers"]) == {"main": PART, "own": "none"}
    assert seen(made["initContainers"]) == {"before": PART}


def test_pods_of_other_schedulers_are_not_mutated(plane: ControlPlane):
    made = plane.request("POST", DRY, of_pod([container("main")], schedulerName="theirs"))

    assert seen(made["spec"]["containers"]) == {"main": None}


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [({}, "void"), ({"gpu-fraction": "0.5"}, PART)],
    ids=["whole GPU", "part"],
)
def test_ephemeral_container_sees_no_more_devices_than_its_pod(
    lab: ClusterLab, annotations: dict[str, str], expected: str
):
    made = of_pod([container("main", {} if annotations else {GPU: "1"})], annotations=annotations)
    lab.namespace.create(made)
    path = f"/api/v1/namespaces/{lab.namespace.name}/pods/p/ephemeralcontainers"

    found: dict[str, Any] = {}
    for name in ("first", "second"):  # existing ones cannot be changed
        change = {"spec": {"ephemeralContainers": [container(name)]}}
        found = lab.plane.request("PATCH", path, change, content_type=STRATEGIC)

    assert seen(found["spec"]["ephemeralContainers"]) == {"first": expected, "second": expected}


WRITES: dict[str, tuple[str, dict[str, Any]]] = {
    "pod": ("", {}),
    "status": ("/status", {"status": {"message": "m"}}),
    "ephemeral container": (
        "/ephemeralcontainers",
        {"spec": {"ephemeralContainers": [container("debug")]}},
    ),
    "resize": (
        "/resize",
        {"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "2m"}}}]}},
    ),
}


@pytest.fixture
def path(lab: ClusterLab) -> str:
    """Return the path of a pod that requests a part of a GPU, bound to a node."""
    lab.node("gpu-0", gpus=1)
    asking = of_pod(
        [container("main", resources={"requests": {"cpu": "1m"}})],
        annotations={"gpu-fraction": "0.5"},
        nodeName="gpu-0",
    )
    lab.namespace.create(asking)
    return f"/api/v1/namespaces/{lab.namespace.name}/pods/p"


FORGED = {
    "runai/visible-devices": ("all", "are written by the scheduler alone"),
    "runai/devices": ('{"GPU-a": 1}', "are written by the scheduler alone"),
    "runai/reservation": ("gpu-res-0", "are written by the scheduler alone"),
    "gpu-fraction": ("0.1", "that a bound pod asked for cannot be changed"),
}


@pytest.mark.parametrize("name", sorted(FORGED.keys() - {"gpu-fraction"}))
def test_pod_with_allocation_annotations_is_refused_at_creation(plane: ControlPlane, name: str):
    value, why = FORGED[name]

    with pytest.raises(ApiRefused, match=why):
        plane.request("POST", DRY, of_pod([container("main")], annotations={name: value}))


@pytest.mark.parametrize("name", FORGED)
def test_admission_refuses_changes_to_allocation_annotations(lab: ClusterLab, path: str, name: str):
    value, why = FORGED[name]
    forged = {"metadata": {"annotations": {name: value}}}

    with pytest.raises(ApiRefused, match=why):
        lab.plane.request("PATCH", path, forged, content_type=STRATEGIC)


@pytest.mark.parametrize("kind", sorted(WRITES.keys() - {"pod"}))
def test_subresource_writes_never_change_allocation_annotations(
    lab: ClusterLab, path: str, kind: str
):
    where, change = WRITES[kind]
    before = lab.plane.request("GET", path)["metadata"]["annotations"]
    forged = {**change, "metadata": {"annotations": {n: v for n, (v, _) in FORGED.items()}}}

    # The API server itself drops fields that a subresource does not write.
    with contextlib.suppress(ApiRefused):
        lab.plane.request("PATCH", f"{path}{where}", forged, content_type=STRATEGIC)

    assert lab.plane.request("GET", path)["metadata"]["annotations"] == before


# The nodes here declare no support for resizing.
@pytest.mark.parametrize("kind", sorted(WRITES.keys() - {"resize"}))
def test_pod_writes_without_allocation_annotations_are_admitted(
    lab: ClusterLab, path: str, kind: str
):
    where, change = WRITES[kind]
    marked = {**change, "metadata": {"labels": {"theirs": "1"}}}

    lab.plane.request("PATCH", f"{path}{where}", marked, content_type=STRATEGIC)


def test_binding_writes_allocation_annotations(lab: ClusterLab):
    lab.node("gpu-0", gpus=1)
    lab.namespace.create(of_pod([container("main")], annotations={"gpu-fraction": "0.5"}))
    path = f"/api/v1/namespaces/{lab.namespace.name}/pods/p"
    granted = {"runai/visible-devices": "GPU-a", "runai/devices": '{"GPU-a": 500}'}
    target = {"apiVersion": "v1", "kind": "Node", "name": "gpu-0"}

    binding = {"metadata": {"name": "p", "annotations": granted}, "target": target}
    lab.plane.request("POST", f"{path}/binding", binding)

    assert granted.items() <= lab.plane.request("GET", path)["metadata"]["annotations"].items()
