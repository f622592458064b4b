"""With the settings of zero-to-jupyterhub's chart, our pods equal KubeSpawner's, but for the GPUs.

The chart's configuration is not on any package registry: this file repeats its settings of
`c.KubeSpawner` and `c.Spawner`, by the names of zero-to-jupyterhub 4.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
from kubernetes_asyncio.client import ApiClient, V1Capabilities, V1Container, V1SecurityContext
from kubespawner import KubeSpawner
from traitlets.config import Config

from runai.spawner.kubernetes import RunaiKubeSpawner
from runai.spawner.session_request import SessionRequest

pytestmark = pytest.mark.usefixtures("kubeconfig")

NODE_PURPOSE = {"key": "hub.jupyter.org/node-purpose", "operator": "In", "values": ["user"]}
# As an object of the Kubernetes client; users write YAML beside it.
METADATA_BLOCKER = V1Container(
    name="block-cloud-metadata",
    image="quay.io/jupyterhub/k8s-network-tools:4.4.0",
    command=["iptables", "--append", "OUTPUT", "--destination", "169.254.169.254", "-j", "DROP"],
    security_context=V1SecurityContext(
        privileged=True, run_as_user=0, capabilities=V1Capabilities(add=["NET_ADMIN"])
    ),
)
TRAITS = {
    "pod_name_template": "jupyter-{user_server}",
    "start_timeout": 300,
    "image_pull_policy": "Always",
    "events_enabled": True,
    "extra_labels": {"hub.jupyter.org/network-access-hub": "true"},
    "extra_annotations": {"lab/owner": "{username}"},
    "uid": 1000,
    "fs_gid": 100,
    "service_account": "notebooks",
    "storage_extra_labels": {"backup": "daily"},
    "storage_extra_annotations": {"lab/tier": "warm"},
    "node_selector": {"disk": "ssd"},
    "node_affinity_required": [
        {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
    ],
    "node_affinity_preferred": [
        {"weight": 1, "preference": {"matchExpressions": [{"key": "x", "operator": "Exists"}]}},
        {"weight": 100, "preference": {"matchExpressions": [NODE_PURPOSE]}},
    ],
    "pod_affinity_preferred": [
        {"weight": 1, "podAffinityTerm": {"topologyKey": "kubernetes.io/hostname"}}
    ],
    "pod_anti_affinity_preferred": [{"weight": 1, "podAffinityTerm": {"topologyKey": "zone"}}],
    "lifecycle_hooks": {"postStart": {"exec": {"command": ["sh", "-c", "echo hello"]}}},
    "init_containers": [{"name": "own", "image": "busybox"}, METADATA_BLOCKER],
    "extra_containers": [{"name": "proxy", "image": "nginx"}],
    "mem_limit": "2G",
    "mem_guarantee": "1G",
    "cpu_limit": 2,
    "cpu_guarantee": 0.5,
    "extra_resource_limits": {"example.com/fpga": "1"},
    "extra_resource_guarantees": {"example.com/fpga": "1"},
    "environment": {"EDITOR": "vim", "TOKEN": {"valueFrom": {"secretKeyRef": {}}}},
    "profile_list": [{"display_name": "Small", "default": True}],
    "extra_pod_config": {"dnsPolicy": "Default"},
    "allow_privilege_escalation": True,
    "common_labels": {"app": "jupyterhub", "release": "jhub", "chart": "jupyterhub-4"},
    "namespace": "jhub",
    "image": "quay.io/jupyterhub/k8s-singleuser-sample:4.4.0",
    "image_pull_secrets": ["jhub-image-pull"],
    "scheduler_name": "jhub-user-scheduler",
    "priority_class_name": "jhub-default-priority",
    "tolerations": [
        {
            "key": "hub.jupyter.org/dedicated",
            "operator": "Equal",
            "value": "user",
            "effect": "NoSchedule",
        },
        {"key": "gpu", "operator": "Exists", "effect": "NoSchedule"},
    ],
    "pvc_name_template": "claim-{user_server}",
    "storage_pvc_ensure": True,
    "storage_access_modes": ["ReadWriteOnce"],
    "storage_capacity": "10Gi",
    "volumes": [
        {
            "name": "volume-{user_server}",
            "persistentVolumeClaim": {"claimName": "claim-{user_server}"},
        },
        {
            "name": "files",
            "secret": {
                "secretName": "singleuser",
                "items": [{"key": "motd", "path": "motd", "mode": 0o644}],
            },
        },
        {"name": "data", "emptyDir": {}},
    ],
    "volume_mounts": [
        {"mountPath": "/home/jovyan", "name": "volume-{user_server}"},
        {"mountPath": "/etc/motd", "subPath": "motd", "name": "files"},
        {"name": "data", "mountPath": "/data"},
    ],
}


@pytest.fixture
def config() -> Config:
    """Return the chart's configuration of spawners."""
    c = Config()
    for trait, value in copy.deepcopy(TRAITS).items():
        setattr(c.KubeSpawner, trait, value)
    c.Spawner.cmd = "jupyterhub-singleuser"
    c.Spawner.default_url = "/lab"
    return c


async def manifest(spawner: KubeSpawner) -> dict[str, Any]:
    async with ApiClient() as client:
        pod = await spawner.get_pod_manifest()
        serialized: dict[str, Any] = client.sanitize_for_serialization(pod)
        return serialized


async def test_spawner_has_the_configured_value_of_each_chart_trait(config: Config):
    kubespawner, our_spawner = (
        spawner_class(config=config, _mock=True)
        for spawner_class in (KubeSpawner, RunaiKubeSpawner)
    )

    assert {trait: getattr(our_spawner, trait) for trait in TRAITS} == {
        trait: getattr(kubespawner, trait) for trait in TRAITS
    }


async def test_session_without_gpus_gets_the_same_pod_as_kubespawner(config: Config):
    original, ours = [
        await manifest(spawner_class(config=config, _mock=True))
        for spawner_class in (KubeSpawner, RunaiKubeSpawner)
    ]

    differences = {
        name for name in ours["spec"] if ours["spec"][name] != original["spec"].get(name)
    }
    assert differences <= {"containers"}
    (our_notebook, *our_sidecars), (original_notebook, *original_sidecars) = (
        pod["spec"]["containers"] for pod in (ours, original)
    )
    assert our_sidecars == original_sidecars
    differences = {
        name for name in our_notebook if our_notebook[name] != original_notebook.get(name)
    }
    assert differences == {"env", "terminationMessagePolicy"}
    env = {variable["name"]: variable for variable in our_notebook["env"]}
    assert [
        variable for variable in original_notebook["env"] if env.get(variable["name"]) != variable
    ] == []
    assert env["NVIDIA_VISIBLE_DEVICES"]["value"] == "void"
    assert ours["metadata"] == original["metadata"]


async def test_session_with_half_a_gpu_differs_in_scheduler_labels_and_devices(
    config: Config,
):
    spawner: Any = RunaiKubeSpawner(config=config, _mock=True)
    spawner._request = SessionRequest.parse({"project": "vision", "gpus": "0.5"})
    ours, original = (
        await manifest(spawner),
        await manifest(KubeSpawner(config=config, _mock=True)),
    )

    differences = {key for key in ours["spec"] if ours["spec"][key] != original["spec"].get(key)}
    assert differences == {"containers", "schedulerName"}
    assert ours["spec"]["schedulerName"] == "runai-scheduler"
    assert ours["spec"]["priorityClassName"] == "jhub-default-priority"
    labels, original_labels = ours["metadata"]["labels"], original["metadata"]["labels"]
    assert {key: value for key, value in labels.items() if original_labels.get(key) != value} == {
        "runai/project": "vision",
        "runai/kind": "build",
    }
    assert ours["spec"]["initContainers"] == original["spec"]["initContainers"]
    (container, *_) = ours["spec"]["containers"]
    visible_devices = next(
        variable for variable in container["env"] if variable["name"] == "NVIDIA_VISIBLE_DEVICES"
    )
    assert visible_devices["valueFrom"]["fieldRef"]["fieldPath"].startswith(
        "metadata.annotations['runai/"
    )
