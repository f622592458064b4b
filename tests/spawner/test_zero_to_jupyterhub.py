"""Configured as zero-to-jupyterhub's chart does it, our pods are KubeSpawner's, but for the GPUs.

The chart's configuration is not on any package registry, so its way is followed here: it reads the
values that Helm left in a file, by dotted names, and sets traits of `c.KubeSpawner` and `c.Spawner`
by them; what is not there is not set. Names of traits and values are those of zero-to-jupyterhub 4.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes_asyncio.client import ApiClient, V1Capabilities, V1Container, V1SecurityContext
from kubernetes_asyncio.config import kube_config
from kubespawner import KubeSpawner, clients
from traitlets.config import Config

from runai.spawner.kubernetes import RunaiKubeSpawner
from runai.spawner.session import SessionRequest

TRAITS = {
    "pod_name_template": ("podNameTemplate", "jupyter-{user_server}"),
    "start_timeout": ("startTimeout", 300),
    "image_pull_policy": ("image.pullPolicy", "Always"),
    "events_enabled": ("events", True),
    "extra_labels": ("extraLabels", {"hub.jupyter.org/network-access-hub": "true"}),
    "extra_annotations": ("extraAnnotations", {"lab/owner": "{username}"}),
    "uid": ("uid", 1000),
    "fs_gid": ("fsGid", 100),
    "service_account": ("serviceAccountName", "notebooks"),
    "storage_extra_labels": ("storage.extraLabels", {"backup": "daily"}),
    "storage_extra_annotations": ("storage.extraAnnotations", {"lab/tier": "warm"}),
    "node_selector": ("nodeSelector", {"disk": "ssd"}),
    "node_affinity_required": (
        "extraNodeAffinity.required",
        [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}],
    ),
    "node_affinity_preferred": (
        "extraNodeAffinity.preferred",
        [{"weight": 1, "preference": {"matchExpressions": [{"key": "x", "operator": "Exists"}]}}],
    ),
    "pod_affinity_preferred": (
        "extraPodAffinity.preferred",
        [{"weight": 1, "podAffinityTerm": {"topologyKey": "kubernetes.io/hostname"}}],
    ),
    "pod_anti_affinity_preferred": (
        "extraPodAntiAffinity.preferred",
        [{"weight": 1, "podAffinityTerm": {"topologyKey": "zone"}}],
    ),
    "lifecycle_hooks": (
        "lifecycleHooks",
        {"postStart": {"exec": {"command": ["sh", "-c", "echo hello"]}}},
    ),
    "init_containers": ("initContainers", [{"name": "own", "image": "busybox"}]),
    "extra_containers": ("extraContainers", [{"name": "proxy", "image": "nginx"}]),
    "mem_limit": ("memory.limit", "2G"),
    "mem_guarantee": ("memory.guarantee", "1G"),
    "cpu_limit": ("cpu.limit", 2),
    "cpu_guarantee": ("cpu.guarantee", 0.5),
    "extra_resource_limits": ("extraResource.limits", {"example.com/fpga": "1"}),
    "extra_resource_guarantees": ("extraResource.guarantees", {"example.com/fpga": "1"}),
    "environment": ("extraEnv", {"EDITOR": "vim", "TOKEN": {"valueFrom": {"secretKeyRef": {}}}}),
    "profile_list": ("profileList", [{"display_name": "Small", "default": True}]),
    "extra_pod_config": ("extraPodConfig", {"dnsPolicy": "Default"}),
    "allow_privilege_escalation": ("allowPrivilegeEscalation", True),
}
"""What is set as it stands in the values under `singleuser`."""
VALUES = {
    "singleuser": {
        "image": {"name": "quay.io/jupyterhub/k8s-singleuser-sample", "tag": "4.4.0"},
        "cmd": "jupyterhub-singleuser",
        "defaultUrl": "/lab",
        "networkTools": {"image": {"name": "quay.io/jupyterhub/k8s-network-tools", "tag": "4.4.0"}},
        "cloudMetadata": {"blockWithIptables": True, "ip": "169.254.169.254"},
        "extraFiles": {"motd": {"mountPath": "/etc/motd", "mode": 0o644}},
        "extraTolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "storage": {
            "capacity": "10Gi",
            "homeMountPath": "/home/jovyan",
            "dynamic": {
                "pvcNameTemplate": "claim-{user_server}",
                "volumeNameTemplate": "volume-{user_server}",
                "storageAccessModes": ["ReadWriteOnce"],
            },
            "extraVolumes": [{"name": "data", "emptyDir": {}}],
            "extraVolumeMounts": [{"name": "data", "mountPath": "/data"}],
        },
    },
    "scheduling": {"userPods": {"nodeAffinity": {"matchNodePurpose": "prefer"}}},
    "custom": None,
}
DEDICATED = {
    "key": "hub.jupyter.org/dedicated",
    "operator": "Equal",
    "value": "user",
    "effect": "NoSchedule",
}


class Values:
    """The file of values, read by dotted names."""

    def __init__(self, place: Path) -> None:
        self._all = yaml.safe_load(place.read_text())

    def get(self, name: str, default: Any = None) -> Any:
        found = self._all
        for word in name.split("."):
            if not isinstance(found, dict) or word not in found:
                return default
            found = found[word]
        return found

    def set(self, section: Any, trait: str, name: str) -> None:
        if (found := self.get(name)) is not None:
            setattr(section, trait, found)


def configured(values: Values) -> Config:
    """Return what the chart configures of spawners: defaults, then what the values say."""
    c = Config()
    c.KubeSpawner.common_labels = {"app": "jupyterhub", "release": "jhub", "chart": "jupyterhub-4"}
    c.KubeSpawner.namespace = "jhub"
    for trait, (name, _value) in TRAITS.items():
        values.set(c.KubeSpawner, trait, f"singleuser.{name}")
    c.KubeSpawner.image = ":".join(values.get(f"singleuser.image.{p}") for p in ("name", "tag"))
    c.KubeSpawner.image_pull_secrets = ["jhub-image-pull"]
    c.KubeSpawner.scheduler_name = "jhub-user-scheduler"
    c.KubeSpawner.priority_class_name = "jhub-default-priority"
    purpose = {"key": "hub.jupyter.org/node-purpose", "operator": "In", "values": ["user"]}
    c.KubeSpawner.node_affinity_preferred.append(
        {"weight": 100, "preference": {"matchExpressions": [purpose]}}
    )
    c.KubeSpawner.tolerations = [DEDICATED, *values.get("singleuser.extraTolerations")]
    dynamic = values.get("singleuser.storage.dynamic")
    c.KubeSpawner.pvc_name_template = dynamic["pvcNameTemplate"]
    c.KubeSpawner.storage_pvc_ensure = True
    values.set(
        c.KubeSpawner, "storage_access_modes", "singleuser.storage.dynamic.storageAccessModes"
    )
    values.set(c.KubeSpawner, "storage_capacity", "singleuser.storage.capacity")
    home = dynamic["volumeNameTemplate"]
    claim = {"claimName": dynamic["pvcNameTemplate"]}
    c.KubeSpawner.volumes = [{"name": home, "persistentVolumeClaim": claim}]
    mounted = {"mountPath": values.get("singleuser.storage.homeMountPath"), "name": home}
    c.KubeSpawner.volume_mounts = [mounted]
    files = values.get("singleuser.extraFiles")
    items = [{"key": key, "path": key, "mode": found["mode"]} for key, found in files.items()]
    c.KubeSpawner.volumes.append(
        {"name": "files", "secret": {"secretName": "singleuser", "items": items}}
    )
    for key, found in files.items():
        mounted = {"mountPath": found["mountPath"], "subPath": key, "name": "files"}
        c.KubeSpawner.volume_mounts.append(mounted)
    c.KubeSpawner.volumes.extend(values.get("singleuser.storage.extraVolumes", []))
    c.KubeSpawner.volume_mounts.extend(values.get("singleuser.storage.extraVolumeMounts", []))
    tools = ":".join(values.get(f"singleuser.networkTools.image.{p}") for p in ("name", "tag"))
    drop = ["iptables", "--append", "OUTPUT", "--destination", "169.254.169.254", "--jump", "DROP"]
    allowed = V1SecurityContext(
        privileged=True, run_as_user=0, capabilities=V1Capabilities(add=["NET_ADMIN"])
    )
    # As an object of Kubernetes' client, beside what users write as YAML.
    c.KubeSpawner.init_containers.append(
        V1Container(
            name="block-cloud-metadata", image=tools, command=drop, security_context=allowed
        )
    )
    values.set(c.Spawner, "cmd", "singleuser.cmd")
    values.set(c.Spawner, "default_url", "singleuser.defaultUrl")
    return c


@pytest.fixture
def config(tmp_path: Path) -> Config:
    values = copy.deepcopy(VALUES)
    for name, value in TRAITS.values():
        place: dict[str, Any] = values["singleuser"]  # type: ignore[assignment]
        *groups, last = name.split(".")
        for group in groups:
            place = place.setdefault(group, {})
        place[last] = value
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    return configured(Values(file))


@pytest.fixture(autouse=True)
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A kubeconfig, which KubeSpawner reads when it is made; nobody is called."""
    file = tmp_path / "kubeconfig"
    here = {"name": "here", "context": {"cluster": "here", "user": "here"}}
    server = {"name": "here", "cluster": {"server": "http://127.0.0.1:1"}}
    made = {"current-context": "here", "contexts": [here], "clusters": [server]}
    file.write_text(yaml.safe_dump({**made, "users": [{"name": "here", "user": {}}]}))
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(file))
    clients.load_config.cache_clear()
    yield
    clients.load_config.cache_clear()


async def manifest(spawner: KubeSpawner) -> dict[str, Any]:
    async with ApiClient() as client:
        made = await spawner.get_pod_manifest()
        found: dict[str, Any] = client.sanitize_for_serialization(made)
        return found


async def test_each_trait_has_the_value_that_was_set(config: Config):
    theirs, ours = (each(config=config, _mock=True) for each in (KubeSpawner, RunaiKubeSpawner))

    assert {t: getattr(ours, t) for t in TRAITS} == {t: getattr(theirs, t) for t in TRAITS}
    assert TRAITS.keys() <= config.KubeSpawner.keys()


async def test_a_session_without_gpus_is_kubespawners_pod(config: Config):
    theirs, ours = [
        await manifest(each(config=config, _mock=True)) for each in (KubeSpawner, RunaiKubeSpawner)
    ]

    differs = {name for name in ours["spec"] if ours["spec"][name] != theirs["spec"].get(name)}
    assert differs <= {"containers"}
    (our, *others), (their, *theirs_too) = (f["spec"]["containers"] for f in (ours, theirs))
    assert others == theirs_too
    assert {name for name in our if our[name] != their.get(name)} == {"env"}
    env = {each["name"]: each for each in our["env"]}
    assert [e for e in their["env"] if env.get(e["name"]) != e] == []
    assert env["NVIDIA_VISIBLE_DEVICES"]["value"] == "void"
    assert ours["metadata"] == theirs["metadata"]


async def test_a_session_with_half_a_gpu_differs_by_scheduler_labels_and_what_it_sees(
    config: Config,
):
    ours: Any = RunaiKubeSpawner(config=config, _mock=True)
    ours._request = SessionRequest.parse({"project": "vision", "gpus": "0.5"})
    found, theirs = await manifest(ours), await manifest(KubeSpawner(config=config, _mock=True))

    differs = {k for k in found["spec"] if found["spec"][k] != theirs["spec"].get(k)}
    assert differs == {"containers", "schedulerName"}
    assert found["spec"]["schedulerName"] == "runai-scheduler"
    assert found["spec"]["priorityClassName"] == "jhub-default-priority"
    labels, before = found["metadata"]["labels"], theirs["metadata"]["labels"]
    assert {k: v for k, v in labels.items() if before.get(k) != v} == {
        "runai/project": "vision",
        "runai/kind": "build",
    }
    assert found["spec"]["initContainers"] == theirs["spec"]["initContainers"]
    (container, *_) = found["spec"]["containers"]
    shown = next(e for e in container["env"] if e["name"] == "NVIDIA_VISIBLE_DEVICES")
    assert shown["valueFrom"]["fieldRef"]["fieldPath"].startswith("metadata.annotations['runai/")
