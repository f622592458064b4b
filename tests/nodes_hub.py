"""A real JupyterHub in a pod beside the chart, configured as docs/kubernetes_notebooks.md says.

Equals zero-to-jupyterhub's installation as far as the tests need it: our spawner replaces
KubeSpawner, notebook servers are pods on the nodes, and the service authenticates users by the hub.
"""

from __future__ import annotations

import secrets
from base64 import b64decode, b64encode
from typing import Any

import httpx

from control_plane.plane import ControlPlane
from hub_configurations import create_hub_objects, documented_values
from hub_platform import HubApi
from real_nodes.images import RUNAI
from waiting import eventually

NAMESPACE = "runai"
USERS = ("bob", "patty")
SECRETS, PODS = (f"/api/v1/namespaces/{NAMESPACE}/{kind}" for kind in ("secrets", "pods"))
TOKEN_KEY = "hub.services.runai.apiToken"
COMES_UP_WITHIN_S = 180
# The settings of zero-to-jupyterhub's chart, then the documented values.
CONFIG = """
import os, yaml
from pathlib import Path

c = get_config()
c.JupyterHub.hub_bind_url = "http://0.0.0.0:8081"
c.JupyterHub.hub_connect_url = "http://hub:8081"
c.JupyterHub.db_url = "sqlite:////tmp/jupyterhub.sqlite"
c.JupyterHub.cookie_secret_file = "/tmp/cookie_secret"
c.JupyterHub.proxy_class = "runai-caddy"
c.CaddyProxy.folder = "/tmp/proxy"
c.JupyterHub.authenticator_class = "dummy"
c.DummyAuthenticator.allow_all = True
c.KubeSpawner.namespace = os.environ["NAMESPACE"]
c.KubeSpawner.image = os.environ["IMAGE"]
c.KubeSpawner.uid = 1000
c.KubeSpawner.working_dir = "/tmp"
c.KubeSpawner.environment = {
    "HOME": "/tmp", "JUPYTERHUB_SINGLEUSER_APP": "jupyter_server.serverapp.ServerApp",
}
c.KubeSpawner.cmd = ["python", "-m", "jupyterhub.singleuser"]
c.KubeSpawner.start_timeout = 170
c.KubeSpawner.http_timeout = 170
c.KubeSpawner.delete_grace_period = 1
c.JupyterHub.services = [{"name": "tester", "api_token": os.environ["TESTER_TOKEN"]}]
c.JupyterHub.load_roles = [
    {"name": "tester", "services": ["tester"], "scopes": ["admin:users", "admin:servers"]},
]
values = yaml.safe_load(Path("/etc/hub/values.yaml").read_text())["hub"]
for name, service in values["services"].items():
    service["api_token"] = os.environ["SERVICE_TOKEN"]
    c.JupyterHub.services.append({"name": name, **service})
for name, role in values["loadRoles"].items():
    c.JupyterHub.load_roles.append({"name": name, **role})
for _, text in sorted(values["extraConfig"].items()):
    exec(text)
"""


def provide_tokens(plane: ControlPlane) -> None:
    """Create the hub's object that our chart needs first: the Secret with its tokens."""
    tokens = {TOKEN_KEY: secrets.token_hex(16), "tester": secrets.token_hex(16)}
    encoded = {name: b64encode(token.encode()).decode() for name, token in tokens.items()}
    plane.request("POST", SECRETS, {"metadata": {"name": "hub"}, "data": encoded})


def begin_hub(plane: ControlPlane) -> None:
    """Create the hub; its pod takes a token from our chart's Secret."""
    files = {"config.py": CONFIG, "values.yaml": documented_values("http://runai.runai")}
    service = {"selector": {"app": "hub"}, "ports": [{"port": 8081}]}
    create_hub_objects(
        *(plane, NAMESPACE),
        {"apiVersion": "v1", "kind": "ConfigMap", "data": files},
        {"apiVersion": "v1", "kind": "Service", "spec": service},
        {"apiVersion": "v1", "kind": "Pod", "spec": _pod()},
        labels={"app": "hub"},
    )


class NodesHub(HubApi):
    """The hub's own API, with the rights of an admin."""

    def __init__(self, plane: ControlPlane) -> None:
        """Wait until the hub answers, and has its users."""
        tokens = plane.request("GET", f"{SECRETS}/hub")["data"]
        address = eventually(lambda: _address(plane), within=COMES_UP_WITHIN_S, what="a hub")
        self.http = httpx.Client(
            base_url=f"http://{address}:8081",
            headers={"Authorization": f"Bearer {_decoded(tokens['tester'])}"},
            trust_env=False,
            timeout=60,
        )
        eventually(self._answers, within=COMES_UP_WITHIN_S, what="the hub answers")
        for user in USERS:
            self.http.post(f"/hub/api/users/{user}").raise_for_status()

    def close(self) -> None:
        """Close the client."""
        self.http.close()

    def _answers(self) -> bool:
        try:
            return self.http.get("/hub/api/").is_success
        except httpx.TransportError:
            return False


def _address(plane: ControlPlane) -> str:
    return str(plane.request("GET", f"{PODS}/hub")["status"].get("podIP", ""))


def _decoded(secret: str) -> str:
    return b64decode(secret).decode()


def _pod() -> dict[str, Any]:
    def secret(name: str, key: str) -> dict[str, Any]:
        return {"valueFrom": {"secretKeyRef": {"name": name, "key": key}}}

    env = {
        "HOME": {"value": "/tmp"},
        "IMAGE": {"value": RUNAI},
        "NAMESPACE": {"value": NAMESPACE},
        "RUNAI_HUB_TOKEN": secret("runai", "hub-token"),
        "SERVICE_TOKEN": secret("hub", TOKEN_KEY),
        "TESTER_TOKEN": secret("hub", "tester"),
    }
    container = {
        "name": "hub",
        "image": RUNAI,
        "command": ["python", "-m", "jupyterhub", "-f", "/etc/hub/config.py"],
        "workingDir": "/tmp",
        "env": [{"name": name, **source} for name, source in env.items()],
        "volumeMounts": [{"name": "config", "mountPath": "/etc/hub"}],
    }
    return {
        "serviceAccountName": "hub",
        "nodeSelector": {"kubernetes.io/hostname": "node-0"},
        "terminationGracePeriodSeconds": 1,
        "securityContext": {"runAsUser": 1000, "fsGroup": 1000},
        "containers": [container],
        "volumes": [{"name": "config", "configMap": {"name": "hub"}}],
    }
