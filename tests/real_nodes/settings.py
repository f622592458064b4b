"""Configuration files of a node's programs: containerd, kubelet and kube-proxy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from real_nodes.dns_server import DOMAIN
from real_nodes.images import PAUSE
from real_nodes.network import GATEWAY

POD_NETWORK = "10.244.0.0/16"


def containerd(place: Path, debian: Path) -> str:
    """Return containerd's; every container is based on the node's `container.json`."""
    # Native: plain copies, which work on every file system, and our image is small.
    # Root in a container must not set a lower OOM score than our own.
    return f"""
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      base_runtime_spec = "{place}/container.json"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        BinaryName = "{debian}/usr/sbin/runc"
        SystemdCgroup = false
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{debian}/usr/lib/cni"
    conf_dir = "{place}/cni"
"""


def network(pods: str) -> dict[str, Any]:
    """Return the CNI configuration: a bridge of the node connects its pods."""
    addresses = {
        "type": "host-local",
        "ranges": [[{"subnet": pods}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    bridge = {"type": "bridge", "bridge": "pods", "isGateway": True, "ipam": addresses}
    return {"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge]}


def kubelet(place: Path) -> dict[str, Any]:
    """Return the kubelet's."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(place / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "cgroupDriver": "cgroupfs",
        "clusterDNS": [GATEWAY],
        "clusterDomain": DOMAIN,
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%"},
        "failCgroupV1": False,
        "failSwapOn": False,
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        # Nodes are given up after six seconds here, so heartbeats must be more frequent.
        "nodeLeaseDurationSeconds": 4,
        "nodeStatusReportFrequency": "10s",
        "nodeStatusUpdateFrequency": "1s",
        "oomScoreAdj": 0,
        "protectKernelDefaults": True,  # it only checks them
        "resolvConf": str(place / "resolv.conf"),
        "syncFrequency": "10s",
    }


def proxy(place: Path) -> dict[str, Any]:
    """Return kube-proxy's."""
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": str(place / "proxy.kubeconfig")},
        "clusterCIDR": POD_NETWORK,
        "conntrack": {"maxPerCore": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        "mode": "nftables",
        # Replies between two pods of one bridge would bypass the node, which has to rewrite them.
        "nftables": {"masqueradeAll": True},
    }
