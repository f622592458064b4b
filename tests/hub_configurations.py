"""A JupyterHub on Kubernetes: configurations as admins write them, and its rights.

Each configuration is Python that JupyterHub runs: the first two together make a working hub.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from control_plane.plane import ControlPlane

DOCUMENTATION = Path(__file__).parents[1] / "docs/kubernetes_notebooks.md"

# The settings of KubeSpawner in zero-to-jupyterhub 4.4, and of the chart around it.
ZERO_TO_JUPYTERHUB_SETTINGS = """
import os, sys
from pathlib import Path

c = get_config()
here = Path(os.environ["RUNAI_TEST_PLACE"])
port, hub_port, _ = os.environ["RUNAI_TEST_PORTS"].split()
c.JupyterHub.bind_url = f"http://127.0.0.1:{port}/"
c.JupyterHub.hub_bind_url = f"http://127.0.0.1:{hub_port}"
c.JupyterHub.db_url = f"sqlite:///{here / 'jupyterhub.sqlite'}"
c.JupyterHub.cookie_secret_file = str(here / "cookie_secret")
c.JupyterHub.proxy_class = "runai-caddy"
c.CaddyProxy.folder = str(here / "proxy")
c.JupyterHub.cleanup_servers = False
c.JupyterHub.last_activity_interval = 60
c.JupyterHub.authenticator_class = "dummy"
c.DummyAuthenticator.allow_all = True
c.DummyAuthenticator.password = os.environ["RUNAI_TEST_PASSWORD"]
c.JupyterHub.tornado_settings = {"slow_spawn_timeout": 0}

c.KubeSpawner.namespace = os.environ["RUNAI_TEST_NAMESPACE"]
c.KubeSpawner.image = "quay.io/jupyterhub/k8s-singleuser-sample:4.4.0"
c.KubeSpawner.scheduler_name = "release-user-scheduler"
c.KubeSpawner.start_timeout = 180
c.KubeSpawner.http_timeout = 60
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

# The values of docs/kubernetes_notebooks.md, applied as zero-to-jupyterhub does.
DOCUMENTED_SETTINGS = """
import yaml

values = yaml.safe_load((here / "values.yaml").read_text())["hub"]
for name, service in values["services"].items():
    c.JupyterHub.services.append({"name": name, **service})
for name, role in values["loadRoles"].items():
    c.JupyterHub.load_roles.append({"name": name, **role})
for _, text in sorted(values["extraConfig"].items()):
    exec(text)

# What the chart does: it runs the service.
c.JupyterHub.services[-1].update(
    command=[sys.executable, "-m", "runai.hub_service"],
    environment={
        **{name: value for name, value in os.environ.items() if name.startswith("RUNAI_")},
        "KUBECONFIG": os.environ["RUNAI_TEST_SERVICE_RIGHTS"],
        "RUNAI_API_URL": c.RunaiKubeSpawner.api_url,
        "PATH": os.environ["PATH"],
    },
)
from jupyterhub.services.service import Service

if "timeout" in Service.class_trait_names():  # a busy machine imports for half a minute
    c.JupyterHub.services[-1]["timeout"] = 180
"""

# Halves the time to start: a real single-user server without JupyterLab's extensions.
QUICK_START_SETTINGS = """
c.KubeSpawner.cmd = [
    "env", "JUPYTERHUB_SINGLEUSER_APP=jupyter_server.serverapp.ServerApp", "JUPYTER_NO_CONFIG=1",
    sys.executable, "-m", "jupyterhub.singleuser",
]
"""

# Typical settings of KubeSpawner by admins, from its documentation.
ADMIN_SETTINGS = (
    QUICK_START_SETTINGS
    + """
ENDS = "echo it '<b>broke</b>'; echo $JUPYTERHUB_API_TOKEN; exit 3"
AWAITS_REQUEST = '''
import os, pathlib, signal, socket
from urllib.parse import urlsplit
url = urlsplit(os.environ["JUPYTERHUB_SERVICE_URL"])
server = socket.create_server((url.hostname, url.port))
connection = server.accept()
'''
ENDS_AT_REQUEST = AWAITS_REQUEST + f"os.execvp('sh', ['sh', '-c', {ENDS!r}])"
SILENT = AWAITS_REQUEST + "pathlib.Path('asked').touch(); signal.pause()"


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
            "display_name": "Ends at once",
            "slug": "ends",
            "kubespawner_override": {"cmd": ["sh", "-c", ENDS]},
        },
        {
            "display_name": "Ends at the first request",
            "slug": "ends-at-request",
            "kubespawner_override": {"cmd": [sys.executable, "-c", ENDS_AT_REQUEST]},
        },
        {
            "display_name": "Silent",
            "slug": "silent",
            "kubespawner_override": {"cmd": [sys.executable, "-c", SILENT]},
        },
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
        spawner.queue_timeout = 20  # by then the scheduler has said why


def change(spawner, pod):
    pod.metadata.annotations["admins/project"] = pod.metadata.labels.get("runai/project", "none")
    return pod


def note(spawner, hook, of=""):
    with (here / "hooks").open("a") as notes:
        notes.write(f"{hook} {spawner.user.name} {of}\\n")


def created(spawner, pod):
    note(spawner, "created", pod["metadata"]["uid"])


def stopped(spawner):
    note(spawner, "stopped")


def authenticated(spawner, auth_state):
    spawner.environment["AUTH_STATE"] = str(auth_state)


async def welcome(spawner, event):
    return {**event, "message": f"Welcome, {spawner.user.name}"}


c.KubeSpawner.after_pod_created_hook = created
c.KubeSpawner.post_stop_hook = stopped
c.KubeSpawner.auth_state_hook = authenticated
c.KubeSpawner.progress_ready_hook = welcome
c.KubeSpawner.profile_list = profiles
c.KubeSpawner.pre_spawn_hook = before
c.KubeSpawner.modify_pod_hook = change
c.KubeSpawner.extra_pod_config = {"dnsPolicy": "Default"}
c.KubeSpawner.environment = {"GREETING": "hello", "NVIDIA_VISIBLE_DEVICES": "all"}
"""
)


# JupyterLab as `runai up` starts it, without the first prompt about news.
JUPYTERLAB_SETTINGS = """
import runai.embedded
c.KubeSpawner.default_url = "/lab"
c.KubeSpawner.environment = {"JUPYTER_CONFIG_PATH": runai.embedded.__path__[0] + "/lab"}
"""


def documented_values(service: str) -> str:
    """Return zero-to-jupyterhub's documented values, with `service` as the service's address."""
    [values] = re.findall(
        r"^```yaml\n(hub:.*?)^```", DOCUMENTATION.read_text(), re.MULTILINE | re.DOTALL
    )
    assert "http://runai.runai" in values
    return str(values).replace("http://runai.runai", service)


def create_hub_objects(
    plane: ControlPlane,
    namespace: str,
    *others: dict[str, Any],
    labels: Mapping[str, str] | None = None,
) -> None:
    """Create an account `hub` with the rights of zero-to-jupyterhub's hub, and other objects."""
    every_verb = ["get", "watch", "list", "create", "delete"]
    kinds = ["pods", "persistentvolumeclaims", "secrets", "services"]
    objects: list[dict[str, Any]] = [
        {"apiVersion": "v1", "kind": "ServiceAccount"},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "Role",
            "rules": [
                {"apiGroups": [""], "resources": kinds, "verbs": every_verb},
                {"apiGroups": [""], "resources": ["events"], "verbs": ["get", "watch", "list"]},
            ],
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "hub"},
            "subjects": [{"kind": "ServiceAccount", "name": "hub", "namespace": namespace}],
        },
        *others,
    ]
    for manifest in objects:
        manifest["metadata"] = {"name": "hub", "namespace": namespace, "labels": dict(labels or {})}
        plane.kubectl("apply", "-f", "-", stdin=json.dumps(manifest))
