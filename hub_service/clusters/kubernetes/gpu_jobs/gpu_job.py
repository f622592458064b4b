"""Custom resource `gpujobs.jupyter-runai.dev/v1alpha1`: a job or array, and its rows. Pure.

The spec is the request, written once. The status has columns for people, and all rows in one
string: the API server takes a structured list several times as much CPU, and more memory.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from runai.hub_service.clusters.kubernetes.client.api import Object
from runai.hub_service.clusters.kubernetes.objects.amounts import gpus_text
from runai.hub_service.clusters.kubernetes.objects.core_objects import WORKLOAD_LABEL
from runai.hub_service.clusters.states.worker_bounds import with_scale
from runai.hub_service.model import arrays
from runai.hub_service.model.records import WorkloadRecord, WorkloadSpec, WorkloadState

API_VERSION: Final = "jupyter-runai.dev/v1alpha1"
ROW_FORMAT: Final = 1
"""Version of the rows' JSON; a later version is not read."""
MAX_REASON: Final = 500

_SPEC: Final = TypeAdapter(WorkloadSpec)
_ROW: Final = TypeAdapter(WorkloadRecord)


class UnreadableGpuJob(ValueError):
    """A resource that no version of this program has written."""


@dataclass(frozen=True, slots=True)
class GpuJob:
    """A resource as it was read."""

    name: str
    uid: str
    version: str
    """Its resourceVersion."""
    spec: WorkloadSpec
    rows: tuple[WorkloadRecord, ...]
    """(): the submission was not completed."""
    writer: int
    """Number of the leader that wrote the rows."""


def path_of(namespace: str) -> str:
    """Return the API path of a namespace's jobs."""
    return f"/apis/{API_VERSION}/namespaces/{namespace}/gpujobs"


def manifest(spec: WorkloadSpec, name: str) -> dict[str, Any]:
    """Return the resource of a job or of a whole array, without a status."""
    return {
        "apiVersion": API_VERSION,
        "kind": "GpuJob",
        "metadata": {
            "name": name,
            "labels": {"runai/project": spec.project, WORKLOAD_LABEL: spec.name},
        },
        "spec": _SPEC.dump_python(spec, mode="json", exclude_defaults=True),
    }


def status(rows: Collection[WorkloadRecord], writer: int) -> dict[str, Any]:
    """Return the status with a workload's row, or the rows of an array and its elements."""
    whole = _whole(rows)
    state = whole.state
    done = sum(count for each, count in whole.states.items() if each.finished)
    size = whole.spec.array or 1
    is_complete, is_failed = state is WorkloadState.SUCCEEDED, state.finished
    return {
        "state": state.value,
        "reason": (whole.reason.text if whole.reason is not None else "")[:MAX_REASON],
        "gpus": gpus_text(sum(row.allocated for row in rows)),
        "done": f"{done if whole.spec.is_array else int(state.finished)}/{size}",
        "conditions": [
            _condition("Complete", state, is_true=is_complete),
            _condition("Failed", state, is_true=is_failed and not is_complete),
        ],
        "format": ROW_FORMAT,
        "writer": writer,
        "rows": json.dumps([_row(row) for row in rows], separators=(",", ":")),
    }


def read_gpu_job(found: Object) -> GpuJob:
    """Parse a resource.

    Raises:
        UnreadableGpuJob: its spec or its rows cannot be read.
    """
    metadata, written = found["metadata"], found.get("status", {})
    try:
        writer = int(written.get("writer", 0))
        spec = _SPEC.validate_json(json.dumps(found["spec"]))
        if written.get("format", ROW_FORMAT) != ROW_FORMAT:
            raise UnreadableGpuJob(f"a later version wrote {metadata['name']}")
        rows = tuple(_read_row(spec, row) for row in json.loads(written.get("rows") or "[]"))
    except (
        *(ValidationError, AttributeError, LookupError, OverflowError),
        *(RecursionError, TypeError, ValueError),
    ) as wrong:
        raise UnreadableGpuJob(f"GpuJob {metadata['name']} cannot be read: {wrong}") from wrong
    return GpuJob(
        metadata["name"],
        metadata["uid"],
        metadata["resourceVersion"],
        spec,
        rows,
        writer,
    )


def _whole(rows: Collection[WorkloadRecord]) -> WorkloadRecord:
    """Return the only row, or the record of the whole array that the rows are of."""
    first, *rest_rows = rows
    if not rest_rows and not first.spec.is_array and first.spec.array_index is None:
        return first
    rest = next((row for row in rows if row.spec.is_array), None)
    return arrays.whole(rest, [row for row in rows if not row.spec.is_array])


def _condition(kind: str, state: WorkloadState, *, is_true: bool) -> dict[str, str]:
    return {"type": kind, "status": "True" if is_true else "False", "reason": state.name.title()}


def _row(row: WorkloadRecord) -> dict[str, Any]:
    """Return a row without its spec; an element's has its index."""
    index = row.spec.array_index
    found: dict[str, Any] = _ROW.dump_python(
        row, mode="json", exclude={"spec", "states"}, exclude_defaults=True
    )
    return found if index is None else {"index": index, **found}


def _read_row(spec: WorkloadSpec, row: Mapping[str, Any]) -> WorkloadRecord:
    own = arrays.element(spec, row["index"]) if "index" in row else spec
    fields = {name: value for name, value in row.items() if name != "index"}
    fields["spec"] = _SPEC.dump_python(own, mode="json")
    return with_scale(_ROW.validate_json(json.dumps(fields)))
