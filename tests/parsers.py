"""Every parser of what other people write, and the errors it may raise: all else is a fault.

Each takes bytes, as they come from a file, a socket or a fuzzer.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from IPython.core.error import UsageError
from pydantic import ValidationError

from runai.hub_service.api.durations import seconds
from runai.hub_service.api.questions import PlanQuestion
from runai.hub_service.api.reports import AgentReport
from runai.hub_service.api.schemas import ProjectPut, SubmitRequest
from runai.hub_service.api.validation import invalid_request
from runai.hub_service.cli.values import parse_memory_mib
from runai.hub_service.clusters.kubernetes.elastic_notes import ELASTIC, read_elastic
from runai.hub_service.clusters.kubernetes.jobs import PAUSES, STARTS, read_job
from runai.hub_service.clusters.kubernetes.making import SPEC
from runai.hub_service.clusters.kubernetes.objects import PRIORITY, read_pod
from runai.hub_service.clusters.local.elastic_dir import ElasticDir
from runai.hub_service.clusters.progress import read_progress
from runai.hub_service.clusters.records import ProjectSpec
from runai.hub_service.config import Config
from runai.hub_service.connection import read_config
from runai.hub_service.elastic_messages import ElasticFiles, MessageError
from runai.hub_service.errors import RunaiError
from runai.hub_service.gpu_types import types_meant
from runai.hub_service.policy_file import read_policy
from runai.hub_service.projects_file import read_projects
from runai.hub_service.scheduler.quantity import MilliGpu
from runai.hub_service.scheduler.wire import InvalidSnapshot, snapshot_from_json
from runai.hub_service.simulation.settings import read_cluster, with_changes
from runai.hub_service.simulation.traces import read_trace
from runai.spawner.form import options_of
from runai.spawner.session import SessionRequest
from runai.widgets.magics import RunaiMagics, _parse
from runai.widgets.request import submit_request

__all__ = ["PARSERS", "Parser"]


@dataclass(frozen=True)
class Parser:
    """Reads bytes, or raises one of `refusals`."""

    read: Callable[[bytes], object]
    refusals: tuple[type[Exception], ...]
    seeds: tuple[bytes, ...]
    """Inputs that are meant, to begin from."""


def _text(content: bytes) -> str:
    return content.decode(errors="surrogateescape")


def _json(content: bytes) -> Any:
    """Decode as the border does; what is no JSON never reaches a parser."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def _as_file(read: Callable[[Path], object]) -> Callable[[bytes], object]:
    path = Path(tempfile.mkdtemp(prefix="runai-parsers-")) / "file.yaml"

    def reading(content: bytes) -> object:
        path.write_bytes(content)
        return read(path)

    return reading


def _message(model: Any) -> Callable[[bytes], object]:
    def reading(content: bytes) -> object:
        try:
            return model.model_validate(_json(content))
        except ValidationError as wrong:
            # What is wrong is told in a sentence that can be shown and sent.
            told = invalid_request([dict(error) for error in wrong.errors()])
            told.message.encode()
            raise told from None

    return reading


def _target(content: bytes) -> object:
    folder = Path(tempfile.gettempdir()) / "runai-parsers-target"
    folder.mkdir(exist_ok=True)
    (folder / "target.json").write_bytes(content)
    return ElasticFiles(folder).target()


def _statuses(content: bytes) -> object:
    folder = Path(tempfile.gettempdir()) / "runai-parsers-status"
    (folder / "status").mkdir(parents=True, exist_ok=True)
    (folder / "status" / "exp1-0.json").write_bytes(content)
    return ElasticDir(folder, None).statuses(["vision/exp1-0"])


METADATA = {
    "uid": "u",
    "namespace": "n",
    "name": "p",
    "creationTimestamp": "2026-01-01T00:00:00Z",
}


def _annotated(content: bytes, names: tuple[str, ...]) -> dict[str, Any]:
    # The API server takes UTF-8 alone.
    text = content.decode(errors="replace")
    first, _, rest = text.partition("|")
    return {name: rest for name in names if name.endswith(first)} or dict.fromkeys(names, text)


POD_NOTES = (
    "gpu-fraction", "gpu-memory", "gpu-fraction-num-devices", PRIORITY,
    "runai/granted", "runai/reservation", "batch.kubernetes.io/job-completion-index",
    "hub.jupyter.org/username", "hub.jupyter.org/servername",
)  # fmt: skip
POD_LABELS = ("runai/project", "runai/kind", "kai.scheduler/queue", "runai/gang", "runai/elastic")


def _pod(content: bytes) -> object:
    metadata = {
        **METADATA,
        "annotations": _annotated(content, POD_NOTES),
        "labels": _annotated(content, POD_LABELS),
    }
    return read_pod({"metadata": metadata, "spec": {"containers": [], "nodeName": "a"}})


def _job(content: bytes) -> object:
    notes = _annotated(content, (SPEC, PAUSES, STARTS, PRIORITY))
    spec: dict[str, Any] = {"template": {"spec": {"containers": []}}}
    job = read_job({"metadata": {**METADATA, "annotations": notes}, "spec": spec})
    # What it says of itself is calculated with.
    return sum(job.pauses) + (job.spec.gpus * job.spec.workers if job.spec else 0)


def _environment(content: bytes) -> object:
    """Settings, one NAME=VALUE a line."""
    lines = (line.partition("=") for line in _text(content).split("\n"))
    given = {"RUNAI_DATA_DIR": "/data", "RUNAI_HUB_TOKEN": "secret"}
    return Config.from_environment(given | {name: value for name, _, value in lines})


def _form(content: bytes) -> object:
    """A form's fields, one name=value a line."""
    fields: dict[str, list[str]] = {}
    for line in _text(content).split("\n"):
        name, _, value = line.partition("=")
        fields.setdefault(name, []).append(value)
    return SessionRequest.parse(options_of(fields))


def _options(content: bytes) -> object:
    found = _json(content)
    return SessionRequest.parse(found) if isinstance(found, dict) else None


def _magic(content: bytes) -> object:
    options = _parse(RunaiMagics.runai_submit, _text(content))
    return submit_request(
        ["true"],
        gpus=options.gpus,
        gpu_memory=options.gpu_memory,
        priority=options.priority,
        name=options.name,
        project=options.project,
        expected_runtime=options.expected_runtime,
        workers=options.workers,
        array=options.array,
        image=options.image,
        workdir=None,
    )


def _kept(content: bytes) -> object:
    """What a Job's annotation keeps of an elastic job; whoever may write Jobs may write it."""
    return read_elastic({ELASTIC: content.decode(errors="replace")})


def _type(content: bytes) -> object:
    return types_meant(_text(content), ["NVIDIA A100-SXM4-80GB", "NVIDIA L4"])


def _changes(content: bytes) -> object:
    return with_changes([ProjectSpec("vision", quota=MilliGpu(1000))], _text(content).split("\n"))


PARSERS = {
    "projects file": Parser(_as_file(read_projects), (RunaiError,), (
        b"projects:\n  vision: {quota: 2.5, members: [ana], idle_job: {stop_s: 30m}}\n",
        b"projects: {a: &a {quota: 1}, b: *a}\n",
    )),
    "policy file": Parser(_as_file(read_policy), (RunaiError,), (b"packing: spread\n", b"{}")),
    "submission": Parser(_message(SubmitRequest), (RunaiError,), (
        b'{"name": "x", "command": ["true"], "gpus": 0.5, "env": {"A": "b"}}',
    )),
    "project": Parser(_message(ProjectPut), (RunaiError,), (b'{"quota": 1, "members": ["a"]}',)),
    "question": Parser(_message(PlanQuestion), (RunaiError,), (
        b'{"add": [{"project": "a", "gpus": 1}], "end": ["a/b"]}',
    )),
    "report": Parser(_message(AgentReport), (RunaiError,), (
        (b'{"node": "a", "at": 1, "interval": 1, "devices": [{"device": "d", "utilization": 0,'
        b' "memory_mib": 1}], "samples": []}'),
    )),
    "snapshot": Parser(lambda c: snapshot_from_json(_json(c)), (InvalidSnapshot,), (
        (b'{"now": 0, "nodes": [{"name": "a", "devices": 8, "device_memory_mib": 1}],'
        b' "projects": [], "workloads": []}'),
    )),
    "duration": Parser(lambda c: seconds(_text(c)), (ValueError,), (b"2h", b"90")),
    "memory size": Parser(lambda c: parse_memory_mib(_text(c)), (ValueError,), (b"4G", b"512Mi")),
    "pod": Parser(_pod, (), (b"gpu-fraction|0.5", b"gpu-memory|8000", b'granted|{"GPU-1": 500}')),
    "job": Parser(_job, (), (b'runai/spec|{"command": ["a"], "gpus": 1}', b"runai/pauses|[1, 2]")),
    "magic": Parser(_magic, (UsageError, RunaiError), (
        b"train.py --gpus 0.5 --priority high", b"--array 3 --workers 2 --name x -- a",
    )),
    "target.json": Parser(_target, (MessageError,), (
        (b'{"gen": 1, "ranks": ["a"], "store": "h:1", "gpus": 1, "min": 1, "max": 2,'
        b' "reason": "start"}'),
    )),
    "status of a worker": Parser(_statuses, (), (
        b'{"worker": "exp1-0", "gen": 1, "state": "running", "pid": 3, "samples_per_s": 2}',
    )),
    "progress": Parser(read_progress, (), (b'{"metrics": {"loss": 0.5}, "parameters": {}}',)),
    "form": Parser(_form, (RunaiError,), (b"project=vision\ngpus=0.5", b"project=nlp\ngpus=4 GiB")),
    "options of a server": Parser(_options, (RunaiError,), (b'{"project": "a", "gpus": 0.5}',)),
    "elastic job": Parser(_kept, (), (
        b'{"target": null, "losses": {"a-0": 1}, "throughput": {"1": 2.5}, "steps": 3}',
    )),
    "type of GPU": Parser(_type, (RunaiError,), (b"a100", b"nvidia l4")),
    "trace": Parser(_as_file(read_trace), (RunaiError,), (
        b"job,project,submit_s,gpus,duration_s\na,vision,0,0.5,1\n",
        b"job,project,submit_s,gpus,duration_s,workers,max_workers\na,vision,0,2,1,2,4\n",
    )),
    "shape of a cluster": Parser(lambda c: read_cluster(_text(c)), (RunaiError,), (b"2x8",)),
    "nodes file": Parser(_as_file(lambda path: read_cluster(str(path))), (RunaiError,), (
        b'[{"name": "dgx-1", "devices": 8, "device_memory_mib": 81920}]',
    )),
    "change of a project": Parser(_changes, (RunaiError,), (
        b"vision.quota=6", b"vision.limit=none\nvision.weight=2",
    )),
    "file of a login": Parser(_as_file(read_config), (RunaiError,), (
        b'{"url": "https://h/services/runai/", "token": "t", "project": "a"}',
    )),
    "environment": Parser(_environment, (RunaiError,), (
        b"RUNAI_GPUS=4\nRUNAI_NOTIFY_WEBHOOK=https://a/b", b"RUNAI_CLUSTER=kubernetes",
        b"RUNAI_NOTIFY_SMTP=smtp://u:p@h:587\nRUNAI_NOTIFY_FROM=a@b.c\nRUNAI_NOTIFY_TO={user}@b.c",
        b"JUPYTERHUB_SERVICE_URL=http://[::1]:1", b"RUNAI_LEDGER=postgresql://u:p@h/d",
    )),
}  # fmt: skip
