"""The two measured schedulers, ours and kube-scheduler, each in a separate process.

Both may call the API server without limit, at the same priority level; the API server counts their
requests, with one FlowSchema each.
"""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from control_plane.plane import ControlPlane
from control_plane.programs import find_program

OURS = "runai-scheduler"
THEIRS = "kube-scheduler"
FLOW_SCHEMAS = "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas"
UNTHROTTLED = 5000


@contextmanager
def running(name: str, plane: ControlPlane, place: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a scheduler during the block."""
    place.mkdir()
    command, environment = (_ours if name == OURS else _theirs)(plane, place)
    with (place / "log").open("wb") as log:
        process = subprocess.Popen(
            command, env={**_plain(), **environment}, stdout=log, stderr=log, cwd=place
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def decided(place: Path) -> list[tuple[float, dict[str, int]]]:
    """Return our scheduler's plans: time (monotonic seconds) and decisions by kind.

    The time is the return of `decide`, before any decision is carried out.
    """
    plans = []
    began = time.time() - time.monotonic()
    for line in (place / "log").read_text().rpartition("\n")[0].splitlines():
        log_entry = json.loads(line) if line.startswith("{") else {}
        if log_entry.get("logger") == "runai.controller" and " decided in " in log_entry["message"]:
            at = datetime.fromisoformat(log_entry["time"]).timestamp() - began
            kinds = re.findall(r"(\d+) (\w+)", log_entry["message"].partition(": ")[2])
            plans.append((at, {kind: int(number) for number, kind in kinds}))
    return plans


def requests(plane: ControlPlane, name: str) -> int:
    """Return the number of a scheduler's requests at the API server, including watches."""
    metrics = plane.request("GET", "/metrics")
    pattern = rf'apiserver_flowcontrol_dispatched_requests_total\{{flow_schema="{name}".*\}} (\S+)'
    return int(sum(float(value) for value in re.findall(pattern, metrics)))


def _ours(plane: ControlPlane, place: Path) -> tuple[list[str], dict[str, str]]:
    plane.request("POST", FLOW_SCHEMAS, _flow_schema())
    environment = {
        "KUBECONFIG": str(plane.service_account("runai", OURS)),
        "RUNAI_CLUSTER": "kubernetes",
        "RUNAI_DATA_DIR": str(place / "data"),
        "RUNAI_HUB_TOKEN": "of-nobody",
        "JUPYTERHUB_SERVICE_URL": "http://127.0.0.1:0",
        "RUNAI_LOG_FORMAT": "json",
        "RUNAI_LOG_LEVEL": "DEBUG",  # it says then what it decides, when it does (`decided`)
    }
    return [sys.executable, "-P", "-m", "runai.hub_service"], environment


def _theirs(plane: ControlPlane, place: Path) -> tuple[list[str], dict[str, str]]:
    program = find_program(THEIRS)
    if program is None:
        sys.exit(f"There is no {THEIRS}: tests/control_plane/build {THEIRS} makes it.")
    settings = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {
            "kubeconfig": str(plane.user("system:kube-scheduler")),
            "qps": UNTHROTTLED,
            "burst": UNTHROTTLED,
        },
        "leaderElection": {"leaderElect": False},
        "profiles": [{"schedulerName": THEIRS}],
    }
    config = place / "config.json"
    config.write_text(json.dumps(settings))
    return [str(program), f"--config={config}", "--secure-port=0"], {}


def _plain() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith(("JUPYTERHUB", "RUNAI"))}


def _flow_schema() -> dict[str, Any]:
    """Return a FlowSchema for our requests, at kube-scheduler's default priority level."""
    everything = {
        "verbs": ["*"],
        "apiGroups": ["*"],
        "resources": ["*"],
        "namespaces": ["*"],
        "clusterScope": True,
    }
    us = {"kind": "ServiceAccount", "serviceAccount": {"namespace": "runai", "name": OURS}}
    return {
        "metadata": {"name": OURS},
        "spec": {
            "matchingPrecedence": 700,
            "priorityLevelConfiguration": {"name": "workload-high"},
            "rules": [{"subjects": [us], "resourceRules": [everything]}],
        },
    }
