"""Fake GPUs of a node: a device plugin registered with a real kubelet, and a fake driver.

    with Gpus(folder, sockets, ["GPU-node-0-0", "GPU-node-0-1"]) as gpus:
        gpus.break_down("GPU-node-0-1", xid=79)

The kubelet allocates the devices that the plugin offers. The driver is the library of tests/agent,
in `folder`, which the node mounts into containers like NVIDIA's runtime. The plugin registers again
after each restart of the kubelet. For `node`.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import grpc

from protocol_buffers import messages

RESOURCE = "nvidia.com/gpu"
VERSION = "v1beta1"
SOCKET = "gpu.sock"
MEMORY_MIB, DRIVER_MEMORY_MIB = 16_000, 100
POLL_INTERVAL_S = 0.2
TIMEOUT_S = 30

# k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1/api.proto, as far as it matters here.
_KINDS = messages(
    {
        "Empty": [],
        "Options": [],
        "Register": [
            ("version", 1, "string", ""),
            ("endpoint", 2, "string", ""),
            ("resource_name", 3, "string", ""),
            ("options", 4, "Options", ""),
        ],
        "Device": [("ID", 1, "string", ""), ("health", 2, "string", "")],
        "Devices": [("devices", 1, "Device", "repeated")],
        "Request": [("devices_ids", 1, "string", "repeated")],
        "Allocate": [("container_requests", 1, "Request", "repeated")],
        "Variable": [("key", 1, "string", ""), ("value", 2, "string", "")],
        "File": [
            ("container_path", 1, "string", ""),
            ("host_path", 2, "string", ""),
            ("permissions", 3, "string", ""),
        ],
        "Response": [("envs", 1, "Variable", "repeated"), ("devices", 3, "File", "repeated")],
        "Allocated": [("container_responses", 1, "Response", "repeated")],
    }
)


class Gpus:
    """The devices of one node."""

    def __init__(self, folder: Path, sockets: Path, devices: Sequence[str]) -> None:
        """Keep the driver's state in `folder`; the kubelet's sockets are in another one."""
        self.devices = list(devices)
        self._folder = folder
        self._sockets = sockets
        self._broken: dict[str, int] = {}
        self._serials = itertools.count(1)
        self._changed = threading.Condition()
        self._stopped = threading.Event()
        self._registration_thread = threading.Thread(target=self._stay_registered, daemon=True)

    def __enter__(self) -> Self:
        """Offer the devices to the kubelet, now or when it starts."""
        self._write_driver_state()
        self._registration_thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the device plugin."""
        self._stopped.set()
        with self._changed:
            self._changed.notify_all()
        self._registration_thread.join()

    def break_down(self, device: str, *, xid: int) -> None:
        """Make a device fail with an Xid, for the driver and the device plugin."""
        self._set({**self._broken, device: xid})

    def mend(self) -> None:
        """Make all devices healthy again, as after a restart of the driver."""
        self._set({})

    # -- inside ------------------------------------------------------------------------------------

    def _set(self, broken: dict[str, int]) -> None:
        with self._changed:
            self._broken = broken
            self._write_driver_state()
            self._changed.notify_all()

    def _write_driver_state(self) -> None:
        lines = [f"gpu {uuid} {MEMORY_MIB} {DRIVER_MEMORY_MIB} 0 0 Fake" for uuid in self.devices]
        for number, uuid in enumerate(self.devices):
            if xid := self._broken.get(uuid):
                # An event with a number of its own, and the driver's recovery action for it.
                lines += [f"xid {number} {next(self._serials)} {xid}", f"recovery {number} 1"]
            else:
                lines.append(f"recovery {number} 0")
        new = self._folder / "state.new"
        new.write_text("\n".join(lines) + "\n")
        new.rename(self._folder / "state")

    def _stay_registered(self) -> None:
        """Stay registered with the current kubelet: a kubelet forgets its plugins when it ends."""
        while not self._stopped.is_set():
            with contextlib.suppress(OSError, grpc.RpcError):
                kubelet = (self._sockets / "kubelet.sock").stat().st_ino
                with self._served():
                    self._register()
                    while self._is_known_to(kubelet) and not self._stopped.wait(POLL_INTERVAL_S):
                        pass
            self._stopped.wait(POLL_INTERVAL_S)

    def _is_known_to(self, kubelet: int) -> bool:
        now = (self._sockets / "kubelet.sock").stat().st_ino
        return now == kubelet and (self._sockets / SOCKET).exists()

    @contextlib.contextmanager
    def _served(self) -> Iterator[None]:
        methods = {
            "GetDevicePluginOptions": self._method(lambda _request: _KINDS["Options"](), "Empty"),
            "Allocate": self._method(self._allocate, "Allocate"),
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(
                self._watch, response_serializer=lambda reply: reply.SerializeToString()
            ),
        }
        (self._sockets / SOCKET).unlink(missing_ok=True)
        server = grpc.server(ThreadPoolExecutor(4))
        server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler(f"{VERSION}.DevicePlugin", methods)]
        )
        server.add_insecure_port(f"unix://{self._sockets / SOCKET}")
        server.start()
        try:
            yield
        finally:
            with self._changed:
                self._changed.notify_all()
            server.stop(0).wait()

    @staticmethod
    def _method(respond: Any, kind: str) -> Any:
        return grpc.unary_unary_rpc_method_handler(
            lambda request, _context: respond(request),
            request_deserializer=_KINDS[kind].FromString,
            response_serializer=lambda reply: reply.SerializeToString(),
        )

    def _register(self) -> None:
        registration = _KINDS["Register"](version=VERSION, endpoint=SOCKET, resource_name=RESOURCE)
        with grpc.insecure_channel(f"unix://{self._sockets / 'kubelet.sock'}") as channel:
            register = channel.unary_unary(f"/{VERSION}.Registration/Register")
            register(registration.SerializeToString(), timeout=TIMEOUT_S, wait_for_ready=True)

    def _watch(self, _request: bytes, context: Any) -> Iterator[Any]:
        reported: dict[str, int] | None = None
        while context.is_active() and not self._stopped.is_set():
            with self._changed:
                if reported == self._broken:
                    self._changed.wait(POLL_INTERVAL_S)
                    continue
                reported = self._broken
            yield _KINDS["Devices"](
                devices=[
                    _KINDS["Device"](ID=uuid, health="Unhealthy" if uuid in reported else "Healthy")
                    for uuid in self.devices
                ]
            )

    def _allocate(self, request: Any) -> Any:
        return _KINDS["Allocated"](
            container_responses=[
                self._container_response(container.devices_ids)
                for container in request.container_requests
            ]
        )

    def _container_response(self, uuids: Sequence[str]) -> Any:
        visible = _KINDS["Variable"](key="NVIDIA_VISIBLE_DEVICES", value=",".join(sorted(uuids)))
        files = [
            _KINDS["File"](
                container_path=f"/dev/nvidia{self.devices.index(uuid)}",
                host_path="/dev/null",
                permissions="rw",
            )
            for uuid in uuids
        ]
        return _KINDS["Response"](envs=[visible], devices=files)
