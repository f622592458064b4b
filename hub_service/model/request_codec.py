"""Codec of a workload's request: one line of JSON that outlives the workload.

It uses the snapshot's format. Equal workers are stored once, with their `count`. Pure. Replays of
the past parse it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from itertools import groupby
from typing import Any, Final

from runai.hub_service.scheduler.model.json_codec import InvalidSnapshot
from runai.hub_service.scheduler.model.snapshot import Snapshot, Workload
from runai.hub_service.scheduler.model.snapshot_json import snapshot_from_json, snapshot_to_json

MAX_WORKERS: Final = 100_000


def request_of(workload: Workload) -> str:
    """Serialize the request of a workload that has not started.

    >>> from runai.hub_service.scheduler.model.quantity import MilliGpu
    >>> from runai.hub_service.scheduler.model.snapshot import Worker
    >>> worker = Worker(name="w-0", gpus=MilliGpu(2000))
    >>> request_of(Workload(name="vision/a", project="vision", workers=(worker,), priority=75))
    '{"workers":[{"gpus":2}],"priority":75}'
    """
    request = replace(workload, user="", submitted=0)
    (fields,) = snapshot_to_json(Snapshot(workloads=(request,)))["workloads"]
    for name in ("name", "project"):
        del fields[name]
    for worker in fields["workers"]:
        del worker["name"]
    fields["workers"] = [
        worker if count == 1 else {"count": count, **worker}
        for worker, count in (
            (worker, len(list(group))) for worker, group in groupby(fields["workers"])
        )
    ]
    return json.dumps(fields, separators=(",", ":"))


def workload_of(name: str, project: str, request: Mapping[str, Any]) -> Workload:
    """Build the workload of a request, with pending workers.

    Raises:
        InvalidSnapshot: the request is malformed.
    """
    workers: list[dict[str, Any]] = []
    for group in request.get("workers", ()):
        if type(group) is not dict or type(count := group.get("count", 1)) is not int:
            message = f"workload {name}: its workers are no list of objects with a count"
            raise InvalidSnapshot(message)
        if not 0 < count <= MAX_WORKERS - len(workers):
            message = f"workload {name}: it has too many workers, or none"
            raise InvalidSnapshot(message)
        worker, start = {key: group[key] for key in group if key != "count"}, len(workers)
        workers += [{**worker, "name": f"{name}-{n}"} for n in range(start, start + count)]
    whole = {**request, "name": name, "project": project, "workers": workers}
    return snapshot_from_json({"workloads": [whole]}).workloads[0]
