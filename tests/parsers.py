"""Every parser of untrusted input, and the errors it may raise: any other error is a bug.

Each takes bytes, as they come from a file, a socket or a fuzzer.
"""

from __future__ import annotations

import json
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from IPython.core.error import UsageError
from pydantic import ValidationError

from object_parsers import as_annotated_job, as_annotated_pod, as_gpu_job, read_as
from runai.embedded.accounts.accounts import Accounts
from runai.embedded.backup.backups import MANIFEST, read_manifest
from runai.embedded.data_directory import DataDirectory
from runai.hub_service.agent.__main__ import AgentSettings
from runai.hub_service.agent.processes.pod_resources import read_holders
from runai.hub_service.api.auth.node_tokens import read_claims
from runai.hub_service.cli.output.what_if import parse_addition, parse_setting
from runai.hub_service.client import calls
from runai.hub_service.client.connection import read_config
from runai.hub_service.client.notebook_program import read_notebook, values_of
from runai.hub_service.client.request_options import request_values
from runai.hub_service.clusters.kubernetes.gpu_jobs.gpu_job import UnreadableGpuJob
from runai.hub_service.clusters.kubernetes.informers.node_pool import NodePool
from runai.hub_service.clusters.kubernetes.objects.jobs import ELASTIC, read_elastic
from runai.hub_service.clusters.local.files.elastic_dir import ElasticDir
from runai.hub_service.model.admin_files import read_policy, read_projects
from runai.hub_service.model.gpu_types import resolve_types
from runai.hub_service.model.progress import read_progress
from runai.hub_service.model.records import ProjectSpec
from runai.hub_service.processes.program_files import named_files, read_code
from runai.hub_service.scheduler.model.json_codec import InvalidSnapshot
from runai.hub_service.scheduler.model.quantity import MilliGpu
from runai.hub_service.scheduler.model.snapshot_json import snapshot_from_json
from runai.hub_service.server.settings import Config
from runai.hub_service.simulation.settings import read_cluster, with_changes
from runai.hub_service.simulation.traces import read_trace
from runai.hub_service.wire.amounts import memory_mib, seconds
from runai.hub_service.wire.elastic_messages import ElasticFiles, MessageError
from runai.hub_service.wire.errors import RunaiError
from runai.hub_service.wire.explanation_schemas import PlanQuestion
from runai.hub_service.wire.reports import AgentReport
from runai.hub_service.wire.schemas import ProjectPut
from runai.hub_service.wire.validation import invalid_request
from runai.hub_service.wire.workload_request import SubmitRequest
from runai.spawner.form import options_of
from runai.spawner.session_request import SessionRequest
from runai.widgets.magics import SUBMIT, RunaiMagics, _parse, _parse_options
from runai.widgets.request import cell_command, submit_request
from runai.widgets.wording import did_you_mean


@dataclass(frozen=True)
class Parser:
    """A parser of bytes; it returns, or raises one of `refusals`."""

    read: Callable[[bytes], object]
    refusals: tuple[type[Exception], ...]
    seeds: tuple[bytes, ...]
    """Valid inputs, as the fuzzer's starting points."""


def _text(content: bytes) -> str:
    return content.decode(errors="surrogateescape")


def _json(content: bytes) -> Any:
    """Decode JSON as the API does; other input never reaches a parser."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


_PLACE = tempfile.TemporaryDirectory(prefix="runai-parsers-")  # removed with the process
FOLDER = Path(_PLACE.name)


def _as_file(read: Callable[[Path], object]) -> Callable[[bytes], object]:
    path = Path(tempfile.mkdtemp(dir=FOLDER)) / "file.yaml"

    def reading(content: bytes) -> object:
        path.write_bytes(content)
        return read(path)

    return reading


def _message(model: Any) -> Callable[[bytes], object]:
    def reading(content: bytes) -> object:
        try:
            return model.model_validate(_json(content))
        except ValidationError as wrong:
            # The error must become a sentence that can be shown and encoded.
            refusal = invalid_request([dict(error) for error in wrong.errors()])
            refusal.message.encode()
            raise refusal from None

    return reading


def _target(content: bytes) -> object:
    folder = FOLDER / "elastic-target"
    folder.mkdir(exist_ok=True)
    (folder / "target.json").write_bytes(content)
    return ElasticFiles(folder).target()


def _statuses(content: bytes) -> object:
    folder = FOLDER / "elastic-status"
    (folder / "status").mkdir(parents=True, exist_ok=True)
    (folder / "status" / "exp1-0.json").write_bytes(content)
    return ElasticDir(folder, None).statuses(["vision/exp1-0"])


def _environment(content: bytes) -> object:
    """Parse settings, one NAME=VALUE a line."""
    lines = (line.partition("=") for line in _text(content).split("\n"))
    given = {"RUNAI_DATA_DIR": "/data", "RUNAI_HUB_TOKEN": "secret"}
    return Config.from_environment(given | {name: value for name, _, value in lines})


def _form(content: bytes) -> object:
    """Parse a form's fields, one name=value a line."""
    fields: dict[str, list[str]] = {}
    for line in _text(content).split("\n"):
        name, _, value = line.partition("=")
        fields.setdefault(name, []).append(value)
    return _use_session_request(
        SessionRequest.parse(options_of(fields)), server=fields.get("project", [""])
    )


def _options(content: bytes) -> object:
    found = _json(content)
    if not isinstance(found, dict):
        return None
    return _use_session_request(SessionRequest.parse(found), server=list(found.values()))


def _use_session_request(request: SessionRequest, server: list[Any]) -> object:
    """Return the spawners' reading of it, and the request saved for the next start."""
    saved = SessionRequest.parse(request.options())
    submission = request.submission(owner="ana", server=str(server[0]) if server else "")
    return request.amount.in_words(), saved, submission


def _magic(content: bytes) -> object:
    options = _parse_options(SUBMIT, _text(content))
    if options is None:  # it asked for the help
        return None
    fields = request_values(options)
    env = fields.pop("env")
    return submit_request(
        ["true"], {name: fields[name] for name in set(fields) - {"workdir"}}, env=env
    )


NAMING = {
    name: getattr(RunaiMagics, f"runai_{name}")
    for name in ("list", "logs", "describe", "suspend", "resume", "delete")
}


def _naming_magic(content: bytes) -> object:
    """Parse a line such as `logs exp1 --tail 3`, and the workload it names."""
    kind, _, line = _text(content).partition(" ")
    options = _parse(NAMING.get(kind, RunaiMagics.runai_logs), line)
    if kind == "list":
        return calls.workload_page(calls.WorkloadFilter(options.project))
    names = [options.name] if isinstance(options.name, str) else options.name
    return [did_you_mean(name, ["exp1", "lab"]) for name in names]


def _cell(content: bytes) -> object:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        return cell_command(_text(content))


def _notebook(path: Path) -> object:
    """Read a notebook, and the parameters that a submission sets."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        return values_of(["rate=1"], read_notebook(path), path.name)


def _code(content: bytes) -> object:
    """Read a file as a shell's text, as a repository's HEAD, and as its packed references."""
    git = FOLDER / "code/.git"
    git.mkdir(parents=True, exist_ok=True)
    for name, text in (("HEAD", content), ("packed-refs", content), ("commondir", b".")):
        (git / name).write_bytes(text)
    return read_code(str(git.parent), named_files(["sh", "-c", _text(content), _text(content)]))


def _agent(content: bytes) -> object:
    """Parse the settings of an agent, one NAME=VALUE a line."""
    lines = (line.partition("=") for line in _text(content).split("\n"))
    given = {"RUNAI_API_URL": "http://h", "RUNAI_NODE": "a", "RUNAI_AGENT_TOKEN": "secret"}
    return AgentSettings.parse(given | {name: value for name, _, value in lines})


def _accounts(content: bytes) -> object:
    """Parse a file of accounts, and try a login with each account."""
    directory = DataDirectory(FOLDER)
    directory.secrets.mkdir(exist_ok=True)
    directory.accounts.write_bytes(content)
    accounts = Accounts(directory)
    return [accounts.check(name, "wrong") for name in list(accounts.all())[:2]]


def _backup(content: bytes) -> object:
    """Parse the manifest of a backup to restore."""
    (FOLDER / MANIFEST).write_bytes(content)
    return read_manifest(FOLDER)


def _elastic_state(content: bytes) -> object:
    """Parse the elastic state in a Job's annotation, which any writer of Jobs may change."""
    return read_elastic({ELASTIC: content.decode(errors="replace")})


def _type(content: bytes) -> object:
    return resolve_types(_text(content), ["NVIDIA A100-SXM4-80GB", "NVIDIA L4"])


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
    "code": Parser(_code, (), (
        b"ref: refs/heads/main", b"0" * 40 + b" refs/heads/main", b"python 'a.py' --c=b.yaml > c",
    )),
    "notebook": Parser(_as_file(_notebook), (RunaiError,), (
        (b'{"nbformat": 4, "cells": [{"cell_type": "code", "source": ["rate: int = 1"], "metadata":'
         b' {"tags": ["parameters"]}}], "metadata": {"kernelspec": {"name": "python3"}}}'),
    )),
    "duration": Parser(lambda c: seconds(_text(c)), (ValueError,), (b"2h", b"90")),
    "memory size": Parser(lambda c: memory_mib(_text(c)), (ValueError,), (b"4G", b"512Mi")),
    "pod": Parser(as_annotated_pod, (), (
        b"gpu-fraction|0.5", b"gpu-memory|8000", b'granted|{"GPU-1": 500}',
    )),
    "job": Parser(as_annotated_job, (), (
        b'runai/spec|{"command": ["a"], "gpus": 1}', b"runai/pauses|[1, 2]",
    )),
    "pod's specification": Parser(read_as("pod"), (), (
        (b'{"spec": {"schedulerName": "runai-scheduler", "nodeSelector": {"zone": "a"}, "affinity":'
         b' {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":'
         b' {"nodeSelectorTerms": [{"matchExpressions": [{"key": "rank",'
         b' "operator": "Gt", "values": ["2"]}]}]}}},'
         b' "tolerations": [{"key": "k", "operator": "Exists"}], "containers": [{"name": "c",'
         b' "env": [{"name": "A", "value": "b"}], "resources": {"requests": {"cpu": "500m",'
         b' "memory": "1Gi", "rdma/hca": "1"}, "limits": {"nvidia.com/gpu": "2"}}}]}}'),
        (b'{"metadata": {"annotations": {"gpu-fraction": "0.5"}}, "spec": {"containers": [],'
         b' "initContainers": [{"restartPolicy": "Always", "ports": [{"hostPort": 1}]}],'
         b' "overhead": {"cpu": "1"}, "volumes": [{"name": "v", "ephemeral": {}}]}, "status":'
         b' {"phase": "Running", "conditions": [{"type": "PodScheduled", "status": "True",'
         b' "lastTransitionTime": "2026-01-01T00:00:00Z"}], "containerStatuses": [{"state":'
         b' {"terminated": {"exitCode": 1}}}]}}'),
    )),
    "batch Job": Parser(read_as("Job"), (), (
        (b'{"metadata": {"annotations": {"runai/held": "x", "runai/min-workers": "1"}}, "spec":'
         b' {"suspend": true, "completionMode": "Indexed", "completions": 3, "parallelism": 3,'
         b' "template": {"metadata": {"labels": {"runai/gang": "true"}}, "spec": {"schedulerName":'
         b' "runai-scheduler", "containers": []}}}, "status": {"completedIndexes": "0,1-2",'
         b' "succeeded": 1, "conditions": [{"type": "Failed", "status": "True",'
         b' "lastTransitionTime": "2026-01-01T00:00:00Z"}]}}'),
        (b'{"metadata": {"annotations": {"runai/held": "x"}}, "spec": {"suspend": true,'
         b' "completions": 2, "parallelism": 2, "template": {"metadata": {"labels":'
         b' {"runai/gang": "true"}}, "spec": {"schedulerName": "runai-scheduler",'
         b' "containers": []}}}}'),
    )),
    "PyTorchJob": Parser(read_as("PyTorchJob"), (), (
        (b'{"metadata": {"annotations": {"runai/held": "x"}}, "spec": {"runPolicy": {"suspend":'
         b' true}, "elasticPolicy": {"minReplicas": 1}, "pytorchReplicaSpecs": {"Worker":'
         b' {"replicas": 2, "restartPolicy": "OnFailure", "template": {"spec": {"schedulerName":'
         b' "runai-scheduler", "containers": [{"name": "c", "resources": {"limits":'
         b' {"nvidia.com/gpu": 1}}}]}}}}}, "status": {"replicaStatuses": {"Worker": {"failed": 1,'
         b' "succeeded": 1}}, "conditions": []}}'),
    )),
    "node": Parser(read_as("node"), (), (
        (b'{"metadata": {"labels": {"nvidia.com/gpu.memory": "16000"}}, "spec": {"taints": [{"key":'
         b' "k", "effect": "NoSchedule"}]}, "status": {"allocatable": {"nvidia.com/gpu": "8",'
         b' "cpu": "4", "memory": "16Gi"}, "conditions": [{"type": "Ready", "status": "True"}]}}'),
    )),
    "Project": Parser(read_as("Project"), (), (
        (b'{"spec": {"parent": "a", "quota": "2.5", "buildQuota": 1, "limit": "unlimited",'
         b' "weight": 1, "neverLent": 1, "nodeTypes": {"build": ["a"]}, "members": ["ana"]}}'),
    )),
    "worker's pod": Parser(read_as("worker's pod"), (), (
        (b'{"metadata": {"labels": {"runai/attempt": "1", "runai/workload": "exp", "runai/project":'
         b' "vision"}}, "spec": {"containers": []}, "status": {"conditions": [{"type":'
         b' "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "full"},'
         b' {"type": "DisruptionTarget", "status": "True", "message": "evicted"}]}}'),
    )),
    "GpuJob": Parser(as_gpu_job, (UnreadableGpuJob,), (
        (b'{"spec": {"project": "vision", "name": "exp", "user": "ana", "kind": "job", "command":'
         b' ["train"], "gpus": 1000}, "status": {"format": 1, "writer": 1, "rows": "[{\\"state\\":'
         b' \\"queued\\", \\"submitted\\": 1.5, \\"workers\\": []}]"}}'),
    )),
    "claim": Parser(read_as("claim"), (), (
        (b'{"metadata": {"annotations": {}}, "spec": {"storageClassName": "fast", "accessModes":'
         b' ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}, "status": {"phase":'
         b' "Pending"}}'),
    )),
    "volume": Parser(read_as("volume"), (), (
        (b'{"spec": {"storageClassName": "fast", "accessModes": [], "capacity": {"storage": "1Gi"},'
         b' "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [{"key":'
         b' "zone", "operator": "In", "values": ["a"]}]}]}}}, "status": {"phase": "Available"}}'),
    )),
    "storage class": Parser(read_as("storage class"), (), (
        (b'{"provisioner": "p", "volumeBindingMode": "WaitForFirstConsumer", "allowedTopologies":'
         b' [{"matchLabelExpressions": [{"key": "zone", "values": ["a"]}]}]}'),
    )),
    "pool": Parser(lambda c: NodePool.parse(_text(c)), (ValueError,), (
        b"runai/node-pool=a", b"!runai/node-pool",
    )),
    "claims of a token": Parser(lambda c: read_claims(f"a.{_text(c)}.b"), (), (
        b"eyJhdWQiOiBbInJ1bmFpIl0sICJzdWIiOiAic3lzdGVtOnNlcnZpY2VhY2NvdW50Omxhbjp4In0", b"W10",
    )),
    "wished workload": Parser(lambda c: parse_addition(_text(c)), (ValueError,), (
        b"nlp 4 GPUs", b"nlp 8 workers of 1 GPU high", b"vision session 20G",
    )),
    "wished setting": Parser(lambda c: parse_setting(_text(c)), (ValueError,), (
        b"vision.quota=6", b"vision.limit=none", b"vision.weight=2",
    )),
    "kubelet's answer": Parser(read_holders, (OSError,), (
        (b"\x0a\x24\x0a\x01p\x12\x01n\x1a\x1c\x0a\x01c\x12\x17"
         b"\x0a\x0envidia.com/gpu\x12\x05GPU-a"),
    )),
    "settings of an agent": Parser(_agent, (RunaiError,), (
        b"RUNAI_GPUS=4\nRUNAI_AGENT_METRICS=[::1]:9410", b"RUNAI_SIMULATE=8\nRUNAI_AGENT_PARENT=1",
    )),
    "accounts.json": Parser(_accounts, (RunaiError,), (
        (b'{"version": 1, "accounts": {"ana": {"hashed": "scrypt$16$8$1$' + b"00" * 16 + b"$"
         + b"00" * 32 + b'", "admin": false}}}'),
    )),
    "backup.json": Parser(_backup, (RunaiError,), (
        b'{"version": "1", "made": "2026", "databases": ["cluster.sqlite"]}',
    )),
    "magic that names": Parser(_naming_magic, (UsageError, RunaiError), (
        b"list -p vision --all", b"logs exp1 --tail 3 --worker 0 -f", b"describe exp1",
        b"suspend a b", b"resume a", b"delete 'a' b",
    )),
    "cell": Parser(_cell, (RunaiError,), (
        b"import torch\nprint(1)\n", b"x = [n for n in range(3)]",
    )),
    "magic": Parser(_magic, (UsageError, RunaiError), (
        b"train.py --gpus 0.5 --priority high", b"--array 3 --workers 2 --name x -- a",
        b"--elastic --min-workers 2 --gpu-type a100 -e A=b --interactive",
        b"--preemptible --backoff-limit 1 --grace 3",
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
    "elastic job": Parser(_elastic_state, (), (
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
        b'{"url": "https://h/services/runai/", "token": "t", "project": "a", "ca": "/c"}',
    )),
    "environment": Parser(_environment, (RunaiError,), (
        b"RUNAI_GPUS=4\nRUNAI_NOTIFY_WEBHOOK=https://a/b", b"RUNAI_CLUSTER=kubernetes",
        b"RUNAI_NOTIFY_SMTP=smtp://u:p@h:587\nRUNAI_NOTIFY_FROM=a@b.c\nRUNAI_NOTIFY_TO={user}@b.c",
        b"JUPYTERHUB_SERVICE_URL=http://[::1]:1", b"RUNAI_LEDGER=postgresql://u:p@h/d",
    )),
}  # fmt: skip
