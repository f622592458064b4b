"""A real JupyterHub over a real API server: KubeSpawner's place is ours, pods are processes here.

The hub runs with the rights that zero-to-jupyterhub gives it, the service (started by the hub) with
the chart's. ana, bo and cy are members of vision. Used by tests with the markers `hub` and
`kubernetes`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from control_plane.lab import ClusterLab, allow_jobs
from control_plane.processes import NODE, ProcessKubelet
from control_plane.sockets import free_ports
from hub_platform import PASSWORD, START_SECONDS, TESTER_TOKEN, USERS, HubPlatform
from runai.hub_service.api.schemas import WorkloadView
from runai.hub_service.client import Client
from waiting import eventually

__all__ = [
    "LAB",
    "KubernetesHub",
    "resources",
    "running_kubernetes_hub",
    "sentence",
    "told",
]

SERVICE_TOKEN = "the-spawners-token"
PROJECTS = "projects: {{vision: {{quota: {gpus}, build_quota: 1, members: [{members}]}}}}"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/runai/leases/runai-scheduler"

# What zero-to-jupyterhub 4.4 sets of KubeSpawner by itself, and what its chart does round it.
AS_ZERO_TO_JUPYTERHUB = """
import os, sys
from pathlib import Path

c = get_config()
here = Path(os.environ["RUNAI_TEST_PLACE"])
port, hub_port, service_port = os.environ["RUNAI_TEST_PORTS"].split()
c.JupyterHub.bind_url = f"http://127.0.0.1:{port}/"
c.JupyterHub.hub_bind_url = f"http://127.0.0.1:{hub_port}"
c.JupyterHub.db_url = f"sqlite:///{here / 'jupyterhub.sqlite'}"
c.JupyterHub.cookie_secret_file = str(here / "cookie_secret")
c.JupyterHub.proxy_class = "runai-embedded"
c.JupyterHub.cleanup_servers = False
c.JupyterHub.last_activity_interval = 60
c.JupyterHub.authenticator_class = "dummy"
c.DummyAuthenticator.allow_all = True
c.DummyAuthenticator.password = os.environ["RUNAI_TEST_PASSWORD"]
c.JupyterHub.tornado_settings = {"slow_spawn_timeout": 0}

c.KubeSpawner.namespace = os.environ["RUNAI_TEST_NAMESPACE"]
c.KubeSpawner.image = "quay.io/jupyterhub/k8s-singleuser-sample:4.4.0"
c.KubeSpawner.scheduler_name = "release-user-scheduler"
c.KubeSpawner.start_timeout = 60
c.KubeSpawner.extra_labels = {"hub.jupyter.org/network-access-hub": "true"}
c.KubeSpawner.tolerations = [
    {"key": "hub.jupyter.org/dedicated", "operator": "Equal", "value": "user",
     "effect": "NoSchedule"},
]
c.KubeSpawner.mem_guarantee = "1G"
c.KubeSpawner.storage_pvc_ensure = True
c.KubeSpawner.storage_capacity = "10Gi"
c.KubeSpawner.storage_access_modes = ["ReadWriteOnce"]
c.KubeSpawner.pvc_name_template = "claim-{user_server}"
c.KubeSpawner.volumes = {
    "home": {"name": "volume-{user_server}",
             "persistentVolumeClaim": {"claimName": "{pvc_name}"}}}
c.KubeSpawner.volume_mounts = {
    "home": {"mountPath": "/home/jovyan", "name": "volume-{user_server}"}}
c.KubeSpawner.working_dir = "/home/jovyan"
c.KubeSpawner.delete_grace_period = 1
c.KubeSpawner.poll_interval = 2
c.JupyterHub.allow_named_servers = True

# In an image this is its command.
c.KubeSpawner.cmd = [sys.executable, "-m", "jupyterhub.singleuser"]
if os.geteuid() == 0:
    c.KubeSpawner.args = ["--allow-root"]

c.JupyterHub.services = [{"name": "tester", "api_token": os.environ["RUNAI_TEST_TOKEN"]}]
c.JupyterHub.load_roles = [
    {"name": "tester", "services": ["tester"], "scopes": ["admin:users", "admin:servers"]},
]
"""

# What docs/kubernetes.md has an admin add.
OURS = """
SCOPES = ["access:services!service=runai", "custom:runai:submit"]
c.JupyterHub.spawner_class = "runai-kube"
c.RunaiKubeSpawner.service_url = f"http://127.0.0.1:{service_port}/services/runai/"
c.RunaiKubeSpawner.service_token = os.environ["RUNAI_HUB_TOKEN"]
c.RunaiKubeSpawner.api_url = f"http://127.0.0.1:{port}/services/runai/"
c.KubeSpawner.server_token_scopes = ["users:activity!user", "access:servers!server", *SCOPES]
c.JupyterHub.custom_scopes = {"custom:runai:submit": {"description": "Submit workloads."}}
c.JupyterHub.load_roles += [
    {"name": "user", "scopes": ["self", *SCOPES]},
    {"name": "runai", "services": ["runai"], "scopes": [
        "list:users", "read:users:groups", "read:roles:users", "read:servers", "read:groups",
    ]},
]
c.JupyterHub.services += [{
    "name": "runai",
    "url": f"http://127.0.0.1:{service_port}",
    "oauth_no_confirm": True,
    "oauth_client_allowed_scopes": SCOPES,
    "command": [sys.executable, "-m", "runai.hub_service"],
    "environment": {
        **{name: os.environ[name] for name in os.environ if name.startswith("RUNAI_")},
        "KUBECONFIG": os.environ["RUNAI_TEST_SERVICE_RIGHTS"],
        "RUNAI_API_URL": c.RunaiKubeSpawner.api_url,
        "PATH": os.environ["PATH"],
    },
}]
"""

# Half the time to start: a real single-user server without JupyterLab's extensions.
QUICK = """
c.KubeSpawner.cmd = [
    "env", "JUPYTERHUB_SINGLEUSER_APP=jupyter_server.serverapp.ServerApp", "JUPYTER_NO_CONFIG=1",
    sys.executable, "-m", "jupyterhub.singleuser",
]
"""

# What admins add to KubeSpawner, as its documentation shows it.
ADMINS = (
    QUICK
    + """
def profiles(spawner):
    if spawner.user.name == "cy":
        return []
    return [
        {
            "display_name": "Plain",
            "slug": "plain",
            "profile_options": {
                "image": {
                    "display_name": "Image",
                    "choices": {
                        "small": {
                            "display_name": "Small",
                            "default": True,
                            "kubespawner_override": {"image": "example/small:1"},
                        },
                        "large": {
                            "display_name": "Large",
                            "kubespawner_override": {"image": "example/large:1"},
                        },
                    },
                    "unlisted_choice": {
                        "enabled": True,
                        "display_name": "Its name",
                        "validation_regex": "^example/[a-z]+$",
                        "kubespawner_override": {"image": "{value}"},
                    },
                },
            },
        },
        {
            "display_name": "One GPU",
            "slug": "one-gpu",
            "kubespawner_override": {
                "extra_resource_limits": {"nvidia.com/gpu": "1"},
                "environment": {"NVIDIA_VISIBLE_DEVICES": "all"},
            },
        },
        {
            "display_name": "Half a GPU",
            "slug": "half",
            "kubespawner_override": {"gpus": "0.5", "project": "vision"},
        },
        {"display_name": "Broken", "slug": "broken", "kubespawner_override": {"cmd": ["/nowhere"]}},
        {
            "display_name": "Never there",
            "slug": "never",
            "kubespawner_override": {
                "extra_annotations": {"test/ignored": "true"},
                "start_timeout": 2,
            },
        },
    ]


def before(spawner):
    spawner.environment["FROM_THE_HOOK"] = spawner.user.name
    if spawner.name == "hurried":
        spawner.queue_timeout = 1


def change(spawner, pod):
    pod.metadata.annotations["admins/project"] = pod.metadata.labels.get("runai/project", "none")
    return pod


c.KubeSpawner.profile_list = profiles
c.KubeSpawner.pre_spawn_hook = before
c.KubeSpawner.modify_pod_hook = change
c.KubeSpawner.extra_pod_config = {"dnsPolicy": "Default"}
c.KubeSpawner.environment = {"GREETING": "hello", "NVIDIA_VISIBLE_DEVICES": "all"}
"""
)


# JupyterLab as `runai up` starts it: no question about news at first.
LAB = """
import runai.embedded
c.KubeSpawner.default_url = "/lab"
c.KubeSpawner.environment = {"JUPYTER_CONFIG_PATH": runai.embedded.__path__[0] + "/lab"}
"""


class KubernetesHub(HubPlatform):
    """The same handles as for a hub of one machine, and the pods of its servers."""

    lab: ClusterLab
    kubelet: ProcessKubelet
    environ: Mapping[str, str]
    _logged: int = 0

    def start(self) -> None:
        command = [sys.executable, "-m", "jupyterhub", "-f", str(self.data_dir / "config.py")]
        with (self.data_dir / "up.log").open("ab") as log:
            self.process = subprocess.Popen(
                command,
                cwd=self.data_dir,
                env=dict(self.environ),
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        eventually(self._answers, within=START_SECONDS, what="the hub answers")

    def pod(self, user: str, server: str = "") -> dict[str, Any]:
        """Return the pod of a user's server; nothing when there is none."""
        for pod in self.lab.namespace.pods():
            notes = pod["metadata"].get("annotations", {})
            of = notes.get("hub.jupyter.org/username"), notes.get("hub.jupyter.org/servername", "")
            if of == (user, server):
                return pod
        return {}

    def environment(self, user: str) -> dict[str, str]:
        """Return the environment of a server, from its process."""
        pid = self.kubelet.process(self.pod(user)["metadata"]["name"]).pid
        words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        return dict(word.decode().split("=", 1) for word in words if word)

    def servers(self, user: str) -> dict[str, Any]:
        """Return the hub's view of a user's servers that it has not stopped."""
        found: dict[str, Any] = self.http.get(f"/hub/api/users/{user}").json()["servers"]
        return found

    def client(self, token: str = SERVICE_TOKEN) -> Client:
        """Return a client of the service."""
        return Client(f"{self.http.base_url}/services/runai/", token, patience_s=30)

    def sessions(self) -> dict[str, WorkloadView]:
        with self.client() as client:
            over = {"ended", "failed", "succeeded"}
            found = [w for w in client.workloads() if w.state not in over and w.kind == "session"]
            return {session.user: session for session in found}

    def spawn_named(self, user: str, server: str, **options: object) -> httpx.Response:
        """Ask for a named server."""
        return self.http.post(f"/hub/api/users/{user}/servers/{server}", json=options)

    @contextmanager
    def spawned(
        self, user: str, *, server: str = "", **options: Any
    ) -> Iterator[list[dict[str, Any]]]:
        """Ask for a server and listen until it is there, or has failed."""
        self._logged = len(self.log())
        answer = self.spawn_named(user, server, **options)
        if answer.status_code >= 400:  # it failed before anybody could listen
            yield [{"message": answer.json()["message"], "failed": True}]
            return
        with self.progress(user, server) as events:
            yield events

    def stop_all(self) -> None:
        for user in USERS:
            for server in self.servers(user):
                self.http.delete(f"/hub/api/users/{user}/servers/{server}")
        eventually(lambda: not self.lab.namespace.pods(), what="no pods")

    def new_log(self) -> str:
        """Return what they wrote since a server was asked for last."""
        return self.log()[self._logged :]

    def log(self) -> str:
        """Return what hub and service wrote."""
        return (self.data_dir / "up.log").read_text(errors="replace")


@contextmanager
def running_kubernetes_hub(
    lab: ClusterLab, place: Path, *, gpus: int = 1, config: str = ADMINS
) -> Iterator[KubernetesHub]:
    """Run hub, service and node while the block runs; nothing of them is left behind."""
    plane, namespace, ports = lab.plane, lab.namespace.name, free_ports(3)
    allow_jobs(plane, namespace)
    (place / "projects.yaml").write_text(PROJECTS.format(gpus=gpus, members=", ".join(USERS)))
    (place / "config.py").write_text(AS_ZERO_TO_JUPYTERHUB + OURS + config)
    hub = KubernetesHub(place, ports[0])
    hub.lab = lab
    own = ("JUPYTERHUB", "RUNAI", "KUBE")
    hub.environ = {
        **{name: value for name, value in os.environ.items() if not name.startswith(own)},
        "KUBECONFIG": str(_hub_rights(lab)),
        "RUNAI_CLUSTER": "kubernetes",
        "RUNAI_DATA_DIR": str(place / "data"),
        "RUNAI_HUB_TOKEN": SERVICE_TOKEN,
        "RUNAI_JOBS_NAMESPACE": namespace,
        "RUNAI_PROJECTS": str(place / "projects.yaml"),
        "RUNAI_TEST_NAMESPACE": namespace,
        "RUNAI_TEST_PASSWORD": PASSWORD,
        "RUNAI_TEST_PLACE": str(place),
        "RUNAI_TEST_PORTS": " ".join(map(str, ports)),
        "RUNAI_TEST_SERVICE_RIGHTS": str(plane.service_account("runai", "runai-scheduler")),
        "RUNAI_TEST_TOKEN": TESTER_TOKEN,
    }
    with ProcessKubelet(plane, place / "node") as kubelet:
        hub.kubelet = kubelet
        lab.node(NODE, gpus=gpus, status=kubelet.status)
        try:
            hub.start()
            for user in USERS:
                hub.http.post(f"/hub/api/users/{user}").raise_for_status()
            yield hub
            hub.stop_all()
        finally:
            hub.stop()
            lab.forget_projects()
            lab.forget(LEASE)


def resources(pod: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = pod["spec"]["containers"][0]["resources"]
    return found


def told(pod: dict[str, Any]) -> dict[str, Any]:
    """Return what the pod's environment says, values and sources alike."""
    env = pod["spec"]["containers"][0]["env"]
    return {e["name"]: e.get("value", e.get("valueFrom", "")) for e in env}


def sentence(events: list[dict[str, Any]], begin: str) -> str:
    """Return the first message that begins so, "" before there is one."""
    return next((e["message"] for e in events if e["message"].startswith(begin)), "")


def _hub_rights(lab: ClusterLab) -> Path:
    """Return what zero-to-jupyterhub lets its hub do, as a kubeconfig."""
    plane, namespace = lab.plane, lab.namespace.name
    everything = ["get", "watch", "list", "create", "delete"]
    made = ["pods", "persistentvolumeclaims", "secrets", "services"]
    objects: list[dict[str, Any]] = [
        {"apiVersion": "v1", "kind": "ServiceAccount"},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "Role",
            "rules": [
                {"apiGroups": [""], "resources": made, "verbs": everything},
                {"apiGroups": [""], "resources": ["events"], "verbs": ["get", "watch", "list"]},
            ],
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "hub"},
            "subjects": [{"kind": "ServiceAccount", "name": "hub", "namespace": namespace}],
        },
    ]
    for found in objects:
        found["metadata"] = {"name": "hub", "namespace": namespace}
        plane.kubectl("apply", "-f", "-", stdin=json.dumps(found))
    return plane.service_account(namespace, "hub")
