"""A real Kubernetes control plane on 127.0.0.1, for as long as a `with` lasts.

    with ControlPlane() as plane:
        plane.add_node("gpu-0", gpus=8)
        plane.kubectl("get", "nodes")

etcd, kube-apiserver (RBAC, TLS, service accounts' tokens), kube-controller-manager (Jobs, garbage
collection, node lifecycle), kube-scheduler, and kwok, which plays every node's kubelet as
kwok-stages.yaml says. No containers, no root; a start takes seconds. `objects` reads and changes
the cluster's objects. For the fixtures of tests/clusters/kubernetes and for benchmarks.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import ssl
import subprocess
import tempfile
import threading
import time
from base64 import b64encode
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import httpx

from control_plane.calls import ApiRefused, Calls
from control_plane.certificates import Authority, Certificate, write_signing_keys
from control_plane.programs import find_program, why_no_kubernetes
from ports import free_ports

STAGES = Path(__file__).with_name("kwok-stages.yaml")
READY_WITHIN_S = 120
STARTS = 3  # another program may take a free port before ours does


class ControlPlane(Calls):
    """A Kubernetes control plane; all its data is deleted afterwards.

    `real_nodes.cluster` makes one with real nodes, which reach it by another address.
    """

    host = "127.0.0.1"
    """Address that the API server listens at."""
    place: Path | None = None
    """Parent of its folder; None: the directory for temporary files."""

    def __init__(self) -> None:
        """Find the programs; none starts before `with`."""
        if missing := why_no_kubernetes():
            raise RuntimeError(missing)
        self._programs: dict[str, subprocess.Popen[bytes]] = {}
        self._flags: dict[str, Mapping[str, str]] = {}
        self._authority = Authority()
        self._stack = ExitStack()
        self.folder = Path()
        self.address = ""
        self.kubeconfig = Path()

    def __enter__(self) -> Self:
        """Start everything; return when it is ready."""
        for attempt in range(1, STARTS + 1):
            try:
                self._start()
            except BaseException as wrong:
                self.__exit__()
                if attempt == STARTS or "address already in use" not in str(wrong):
                    raise
            else:
                break
        return self

    def __exit__(self, *_: object) -> None:
        """Stop clients before their servers, and delete all data."""
        for name in reversed(list(self._programs)):
            self._stop(name)
        self._stack.close()

    # -- use ---------------------------------------------------------------------------------------

    def start(self, name: str, flags: Mapping[str, str]) -> None:
        """Run one more program, for as long as the plane runs."""
        self._run(name, flags)

    def stop(self, name: str) -> None:
        """Kill a program."""
        self._stop(name)

    def restart(self, name: str) -> None:
        """Kill a program, and start it again with the same data."""
        self._stop(name)
        self._run(name, self._flags[name])
        if name == "kube-apiserver":
            self._until_ready(name, "/readyz")

    def service_account(self, namespace: str, name: str) -> Path:
        """Return a kubeconfig with a fresh token of that service account, as its pods have it."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        token_request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {},
        }
        token = self.request("POST", path, token_request)["status"]["token"]
        return self._write_kubeconfig(f"{namespace}-{name}", {"token": token})

    def user(self, name: str, groups: Sequence[str] = ()) -> Path:
        """Return a kubeconfig of a user by certificate, with the RBAC rights of that name."""
        return self._write_kubeconfig(name, _as_user(self._authority.user(name, groups)))

    # -- inside ------------------------------------------------------------------------------------

    def _start(self) -> None:
        self.folder = Path(
            self._stack.enter_context(
                tempfile.TemporaryDirectory(
                    prefix="plane-", dir=self.place, ignore_cleanup_errors=True
                )
            )
        )
        write_signing_keys(self.folder)
        (self.folder / "ca.crt").write_bytes(self._authority.certificate)
        self._authority.server(
            ["localhost", "kubernetes.default.svc"], {"127.0.0.1", "10.96.0.1", self.host}
        ).write(self.folder, "server")
        administrator = self._authority.user("administrator", ["system:masters"])
        administrator.write(self.folder, "administrator")
        client, peer, api, manager = free_ports(4)
        self.address = f"https://{self.host}:{api}"
        self.kubeconfig = self._write_kubeconfig("administrator", _as_user(administrator))
        tls_context = ssl.create_default_context(cafile=str(self.folder / "ca.crt"))
        tls_context.load_cert_chain(
            self.folder / "administrator.crt", self.folder / "administrator.key"
        )
        self._http = self._stack.enter_context(
            httpx.Client(base_url=self.address, verify=tls_context, trust_env=False, timeout=90)
        )
        self._run("etcd", self._etcd_flags(client, peer))
        self._run("kube-apiserver", self._api_server_flags(api, client))
        self._until_ready("kube-apiserver", "/readyz")
        self._run("kube-controller-manager", self._manager_flags(manager))
        self._run("kube-scheduler", self._scheduler_flags())
        self._run_nodes()
        # A namespace accepts no pods before it has its service account.
        self._until_ready(
            "kube-controller-manager", "/api/v1/namespaces/default/serviceaccounts/default"
        )

    def _run_nodes(self) -> None:
        """Run what plays the nodes' kubelets."""
        flags = {
            "kubeconfig": str(self.kubeconfig),
            "config": str(STAGES),
            "manage-all-nodes": "true",
            "node-ip": "127.0.0.1",
            "node-lease-duration-seconds": "40",
        }
        self._run("kwok", flags)

    def _etcd_flags(self, client: int, peer: int) -> dict[str, str]:
        return {
            "data-dir": str(self.folder / "etcd"),
            "listen-client-urls": f"http://127.0.0.1:{client}",
            "advertise-client-urls": f"http://127.0.0.1:{client}",
            "listen-peer-urls": f"http://127.0.0.1:{peer}",
            "initial-advertise-peer-urls": f"http://127.0.0.1:{peer}",
            "initial-cluster": f"default=http://127.0.0.1:{peer}",
            "unsafe-no-fsync": "true",
            "log-level": "warn",
        }

    def _api_server_flags(self, port: int, etcd: int) -> dict[str, str]:
        return {
            "etcd-servers": f"http://127.0.0.1:{etcd}",
            "bind-address": self.host,
            "secure-port": str(port),
            "endpoint-reconciler-type": "none",  # no Service may point at loopback
            "client-ca-file": str(self.folder / "ca.crt"),
            "tls-cert-file": str(self.folder / "server.crt"),
            "tls-private-key-file": str(self.folder / "server.key"),
            "service-account-issuer": "https://kubernetes.default.svc",
            "service-account-key-file": str(self.folder / "sa.pub"),
            "service-account-signing-key-file": str(self.folder / "sa.key"),
            "authorization-mode": "Node,RBAC",
            "service-cluster-ip-range": "10.96.0.0/16",
            "shutdown-delay-duration": "0s",
        }

    def _manager_flags(self, port: int) -> dict[str, str]:
        return {
            "kubeconfig": str(self.user("system:kube-controller-manager")),
            "bind-address": "127.0.0.1",
            "secure-port": str(port),
            "cert-dir": str(self.folder / "controller-manager"),
            "leader-elect": "false",
            "use-service-account-credentials": "true",
            "service-account-private-key-file": str(self.folder / "sa.key"),
            "root-ca-file": str(self.folder / "ca.crt"),
            # The defaults (20, 30) alone make the start several seconds longer.
            "kube-api-qps": "500",
            "kube-api-burst": "1000",
        }

    def _scheduler_flags(self) -> dict[str, str]:
        return {
            "kubeconfig": str(self.user("system:kube-scheduler")),
            "leader-elect": "false",
            "secure-port": "0",
        }

    def _write_kubeconfig(self, name: str, user: Mapping[str, str]) -> Path:
        ca_data = b64encode(self._authority.certificate).decode()
        cluster = {"server": self.address, "certificate-authority-data": ca_data}
        path = self.folder / f"{name}.kubeconfig"
        path.write_text(  # JSON is YAML
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "clusters": [{"name": "test", "cluster": cluster}],
                    "users": [{"name": name, "user": dict(user)}],
                    "contexts": [{"name": name, "context": {"cluster": "test", "user": name}}],
                    "current-context": name,
                }
            )
        )
        return path

    def _run(self, name: str, flags: Mapping[str, str]) -> None:
        command = [str(find_program(name)), *(f"--{key}={value}" for key, value in flags.items())]
        self._flags[name] = flags
        # The signal is sent at the end of the starting thread: useful from the main thread alone.
        if shutil.which("setpriv") and threading.current_thread() is threading.main_thread():
            command = ["setpriv", "--pdeathsig", "KILL", *command]
        with (self.folder / f"{name}.log").open("ab") as log:
            self._programs[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                start_new_session=True,  # Ctrl-C is for the tests
                env={**os.environ, "NO_PROXY": f"127.0.0.1,{self.host}"},
            )

    def _stop(self, name: str) -> None:
        program = self._programs.pop(name)
        program.send_signal(signal.SIGKILL)  # no data of these is worth saving
        program.wait()

    def _until_ready(self, name: str, path: str) -> None:
        deadline = time.monotonic() + READY_WITHIN_S
        while True:
            try:
                self.request("GET", path)
            except (ApiRefused, httpx.TransportError) as failed:
                for other, program in self._programs.items():
                    if program.poll() is not None:
                        raise RuntimeError(f"{other} ended: {self._log_tail(other)}") from failed
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{name} is not ready: {self._log_tail(name)}") from failed
                time.sleep(0.05)
            else:
                return

    def _log_tail(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")[-3000:]


def _as_user(certificate: Certificate) -> dict[str, str]:
    return {
        "client-certificate-data": b64encode(certificate.certificate).decode(),
        "client-key-data": b64encode(certificate.key).decode(),
    }
