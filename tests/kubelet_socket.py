"""The kubelet's pod-resources socket, as real gRPC: List of v1.PodResourcesLister.

Its messages are encoded by Google's own library, from the kubelet's definition.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

from protocol_buffers import messages

_FIELDS = {
    # k8s.io/kubelet/pkg/apis/podresources/v1/api.proto, as far as the tests need it.
    "Node": [("ID", 1, "int64", "")],
    "Topology": [("nodes", 1, "Node", "repeated")],
    "Devices": [
        ("resource_name", 1, "string", ""),
        ("device_ids", 2, "string", "repeated"),
        ("topology", 3, "Topology", ""),
    ],
    "Container": [
        ("name", 1, "string", ""),
        ("devices", 2, "Devices", "repeated"),
        ("cpu_ids", 3, "int64", "repeated"),
    ],
    "Pod": [
        ("name", 1, "string", ""),
        ("namespace", 2, "string", ""),
        ("containers", 3, "Container", "repeated"),
    ],
    "List": [("pod_resources", 1, "Pod", "repeated")],
}
_KINDS = messages(_FIELDS)


def answer(pods: Mapping[str, Sequence[str]], resource: str = "nvidia.com/gpu") -> bytes:
    """Return a kubelet's answer: device UUIDs by `namespace/name`, CPUs, and a pod without any."""
    found = []
    for key, uuids in {**pods, "kube-system/empty": ()}.items():
        namespace, name = key.split("/")
        topology = _KINDS["Topology"](nodes=[_KINDS["Node"](ID=1)])
        given = _KINDS["Devices"](resource_name=resource, device_ids=uuids, topology=topology)
        other = _KINDS["Devices"](resource_name="example.com/nic", device_ids=["eth1"])
        main = _KINDS["Container"](name="main", devices=[other, given], cpu_ids=[3, 300])
        found.append(_KINDS["Pod"](name=name, namespace=namespace, containers=[main]))
    encoded: bytes = _KINDS["List"](pod_resources=found).SerializeToString()
    return encoded


@contextlib.contextmanager
def listening(socket: Path, pods: Callable[[], Mapping[str, Sequence[str]]]) -> Iterator[str]:
    """Serve `pods` and their devices at a socket, as a kubelet does; yield its path."""

    def serve(_request: bytes, _context: Any) -> bytes:
        return answer(pods())

    handlers = {"List": grpc.unary_unary_rpc_method_handler(serve)}
    server = grpc.server(ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler("v1.PodResourcesLister", handlers)]
    )
    server.add_insecure_port(f"unix://{socket}")
    server.start()
    try:
        yield str(socket)
    finally:
        server.stop(None).wait()
