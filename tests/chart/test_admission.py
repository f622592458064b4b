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

DEVICES_VARIABLE = "NVIDIA_VISIBLE_DEVICES"
DRY_RUN_PODS = "/api/v1/namespaces/default/pods?dryRun=All"
STRATEGIC_MERGE = "application/strategic-merge-patch+json"
FRACTION = "device of the fraction"
"""A pod with a GPU fraction reads the variable from its annotation."""


def container(name: str, amounts: dict[str, str] | None = None, **fields: Any) -> dict[str, Any]:
    limits = {"resources": {"limits": amounts}} if amounts is not None else {}
    return {"name": name, "image": "example/cuda", **limits, **fields}


def visible_devices(containers: list[dict[str, Any]]) -> dict[str, str | None]:
    """Return NVIDIA_VISIBLE_DEVICES of each container; None: the device plugin sets it."""
    found: dict[str, str | None] = {}
    for manifest in containers:
        variable = next((e for e in manifest.get("env", ()) if e["name"] == DEVICES_VARIABLE), None)
        found[manifest["name"]] = (
            None if variable is None else FRACTION if "valueFrom" in variable else variable["value"]
        )
    return found


def pod_of(containers: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    annotations = fields.pop("annotations", {})
    return pod("p", 0, annotations=annotations, **{"containers": containers, **fields})


GPU, MIG = "nvidia.com/gpu", "nvidia.com/mig-1g.5gb"
ONE_CONTAINER = {
    "nothing": ({}, "void"),
    "a GPU": ({"limits": {GPU: "1"}}, None),
    "a MIG instance": ({"limits": {MIG: "1"}}, None),
    "no GPU": ({"limits": {GPU: "0"}}, "void"),
    "no GPU, as a quantity with a suffix": ({"limits": {GPU: "0k"}}, "void"),
    "no GPU in limits and requests": ({"limits": {GPU: "0"}, "requests": {GPU: "0"}}, "void"),
    "no MIG instance": ({"limits": {MIG: "0"}}, "void"),
    "no GPU and a MIG instance": ({"limits": {GPU: "0", MIG: "1"}}, None),
    "CPU and an FPGA": ({"limits": {"cpu": "1", "example.com/fpga": "1"}}, "void"),
}


@pytest.mark.parametrize(("resources", "expected"), ONE_CONTAINER.values(), ids=ONE_CONTAINER)
def test_container_sees_no_device_unless_it_requests_one(
    plane: ControlPlane, resources: dict[str, Any], expected: str | None
):
    created = plane.request("POST", DRY_RUN_PODS, pod_of([container("main", resources=resources)]))

    assert visible_devices(created["spec"]["containers"]) == {"main": expected}


def test_gpu_requests_without_limits_are_refused(plane: ControlPlane):
    gpu_container = container("main", resources={"requests": {GPU: "1"}})

    with pytest.raises(ApiRefused, match="Limit must be set"):
        plane.request("POST", DRY_RUN_PODS, pod_of([gpu_container]))


def test_sidecar_of_a_gpu_container_sees_no_device(plane: ControlPlane):
    created = plane.request(
        "POST",
        DRY_RUN_PODS,
        pod_of(
            [container("main", {GPU: "1"}), container("side", env=[{"name": "A", "value": "b"}])],
            initContainers=[container("before"), container("checks", {GPU: "1"})],
        ),
    )["spec"]

    assert visible_devices(created["containers"]) == {"main": None, "side": "void"}
    assert visible_devices(created["initContainers"]) == {"before": "void", "checks": None}


def test_containers_of_a_gpu_fraction_pod_see_its_gpu_unless_their_variable_is_set(
    plane: ControlPlane,
):
    own = container("own", env=[{"name": DEVICES_VARIABLE, "value": "none"}])
    created = plane.request(
        "POST",
        DRY_RUN_PODS,
        pod_of(
            [container("main", {GPU: "0"}), own],
            initContainers=[container("before")],
            annotations={"gpu-fraction": "0.5"},
        ),
    )["spec"]

    assert visible_devices(created["containers"]) == {"main": FRACTION, "own": "none"}
    assert visible_devices(created["initContainers"]) == {"before": FRACTION}


def test_pods_of_other_schedulers_are_not_mutated(plane: ControlPlane):
    created = plane.request(
        "POST", DRY_RUN_PODS, pod_of([container("main")], schedulerName="other-scheduler")
    )

    assert visible_devices(created["spec"]["containers"]) == {"main": None}


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [({}, "void"), ({"gpu-fraction": "0.5"}, FRACTION)],
    ids=["whole GPU", "GPU fraction"],
)
def test_ephemeral_container_sees_no_more_devices_than_its_pod(
    lab: ClusterLab, annotations: dict[str, str], expected: str
):
    manifest = pod_of(
        [container("main", {} if annotations else {GPU: "1"})], annotations=annotations
    )
    lab.namespace.create(manifest)
    path = f"/api/v1/namespaces/{lab.namespace.name}/pods/p/ephemeralcontainers"

    patched: dict[str, Any] = {}
    for name in ("first", "second"):  # existing ones cannot be changed
        change = {"spec": {"ephemeralContainers": [container(name)]}}
        patched = lab.plane.request("PATCH", path, change, content_type=STRATEGIC_MERGE)

    devices = visible_devices(patched["spec"]["ephemeralContainers"])
    assert devices == {"first": expected, "second": expected}


POD_WRITES: dict[str, tuple[str, dict[str, Any]]] = {
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
def pod_path(lab: ClusterLab) -> str:
    """Return the path of a pod that requests a part of a GPU, bound to a node."""
    lab.node("gpu-0", gpus=1)
    fraction_pod = pod_of(
        [container("main", resources={"requests": {"cpu": "1m"}})],
        annotations={"gpu-fraction": "0.5"},
        nodeName="gpu-0",
    )
    lab.namespace.create(fraction_pod)
    return f"/api/v1/namespaces/{lab.namespace.name}/pods/p"


FORGED_ANNOTATIONS = {
    "runai/visible-devices": ("all", "are written by the scheduler alone"),
    "runai/devices": ('{"GPU-a": 1}', "are written by the scheduler alone"),
    "runai/reservation": ("gpu-res-0", "are written by the scheduler alone"),
    "gpu-fraction": ("0.1", "that a bound pod asked for cannot be changed"),
}


@pytest.mark.parametrize("name", sorted(FORGED_ANNOTATIONS.keys() - {"gpu-fraction"}))
def test_pod_with_allocation_annotations_is_refused_at_creation(plane: ControlPlane, name: str):
    value, message = FORGED_ANNOTATIONS[name]

    with pytest.raises(ApiRefused, match=message):
        plane.request("POST", DRY_RUN_PODS, pod_of([container("main")], annotations={name: value}))


@pytest.mark.parametrize("name", FORGED_ANNOTATIONS)
def test_admission_refuses_changes_to_allocation_annotations(
    lab: ClusterLab, pod_path: str, name: str
):
    value, message = FORGED_ANNOTATIONS[name]
    forged = {"metadata": {"annotations": {name: value}}}

    with pytest.raises(ApiRefused, match=message):
        lab.plane.request("PATCH", pod_path, forged, content_type=STRATEGIC_MERGE)


@pytest.mark.parametrize("kind", sorted(POD_WRITES.keys() - {"pod"}))
def test_subresource_writes_never_change_allocation_annotations(
    lab: ClusterLab, pod_path: str, kind: str
):
    subresource, change = POD_WRITES[kind]
    annotations_before = lab.plane.request("GET", pod_path)["metadata"]["annotations"]
    annotations = {name: value for name, (value, _) in FORGED_ANNOTATIONS.items()}
    forged = {**change, "metadata": {"annotations": annotations}}

    # The API server itself drops fields that a subresource does not write.
    with contextlib.suppress(ApiRefused):
        lab.plane.request("PATCH", pod_path + subresource, forged, content_type=STRATEGIC_MERGE)

    assert lab.plane.request("GET", pod_path)["metadata"]["annotations"] == annotations_before


# The nodes here declare no support for resizing.
@pytest.mark.parametrize("kind", sorted(POD_WRITES.keys() - {"resize"}))
def test_pod_writes_without_allocation_annotations_are_admitted(
    lab: ClusterLab, pod_path: str, kind: str
):
    subresource, change = POD_WRITES[kind]
    labelled = {**change, "metadata": {"labels": {"example.com/label": "1"}}}

    lab.plane.request("PATCH", pod_path + subresource, labelled, content_type=STRATEGIC_MERGE)


def test_binding_writes_allocation_annotations(lab: ClusterLab):
    lab.node("gpu-0", gpus=1)
    lab.namespace.create(pod_of([container("main")], annotations={"gpu-fraction": "0.5"}))
    path = f"/api/v1/namespaces/{lab.namespace.name}/pods/p"
    annotations = {"runai/visible-devices": "GPU-a", "runai/devices": '{"GPU-a": 500}'}
    target = {"apiVersion": "v1", "kind": "Node", "name": "gpu-0"}

    binding = {"metadata": {"name": "p", "annotations": annotations}, "target": target}
    lab.plane.request("POST", f"{path}/binding", binding)

    written = lab.plane.request("GET", path)["metadata"]["annotations"]
    assert annotations.items() <= written.items()
