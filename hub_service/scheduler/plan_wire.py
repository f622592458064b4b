"""Plans as JSON objects: what `runai schedule` prints and the API gives.

Knows every decision's fields on the wire; decoded JSON in and out, never text. Exported
by `wire`; snapshots are `snapshot_wire`'s.
"""

from __future__ import annotations

from typing import Any, assert_never

from runai.hub_service.scheduler.explanation_wire import EXPLANATION
from runai.hub_service.scheduler.fields import (
    GPUS,
    NAMES,
    OPTIONAL_GPUS,
    Field,
    InvalidSnapshot,
    ObjectFormat,
    mapping_of,
    read_count,
    read_name,
    read_text,
    tuple_of,
)
from runai.hub_service.scheduler.model import (
    Decision,
    DeviceShare,
    Move,
    Plan,
    ProjectShare,
    Reason,
    Reserve,
    Resize,
    Start,
    Stop,
    Unreserve,
    Wait,
)
from runai.hub_service.scheduler.quantity import gpu_number

Json = dict[str, Any]

_NAME = Field(read_name)
_TEXT = Field(read_text)
_COUNT = Field(read_count)
_SHARE = ObjectFormat("device", DeviceShare, {"device": _COUNT, "gpus": GPUS})
_SHARES = Field(tuple_of(_SHARE.read), lambda shares: [_write_share(share) for share in shares])
_REASON = ObjectFormat(
    "reason",
    Reason,
    {"code": _NAME, "rule": _NAME, "text": _TEXT, "for": Field(read_name, attribute="for_")},
)


def _write_share(share: DeviceShare) -> Json:
    return {"device": share.device, "gpus": gpu_number(share.gpus)}


_WORKLOAD_WORKER = {"workload": _NAME, "worker": _NAME}
_PLACED = {**_WORKLOAD_WORKER, "node": _NAME, "devices": _SHARES}
_WHY = Field(_REASON.read, _REASON.write)
_DECISIONS: dict[str, ObjectFormat[Any]] = {
    "start": ObjectFormat("start", Start, _PLACED),
    "stop": ObjectFormat("stop", Stop, {**_WORKLOAD_WORKER, "reason": _WHY}),
    "reserve": ObjectFormat("reserve", Reserve, {**_PLACED, "waits_for": NAMES}),
    "unreserve": ObjectFormat("unreserve", Unreserve, _WORKLOAD_WORKER),
    "move": ObjectFormat("move", Move, {**_PLACED, "reason": _WHY}),
    "resize": ObjectFormat("resize", Resize, {**_PLACED, "reason": _WHY}),
    "wait": ObjectFormat(
        "wait",
        Wait,
        {
            "workload": _NAME,
            "reason": _WHY,
            "position": _COUNT,
            "explanation": Field(EXPLANATION.read, EXPLANATION.write),
        },
    ),
}


def _read_decision(value: Any) -> Decision:  # noqa: ANN401  decoded JSON
    kind = value.get("kind") if type(value) is dict else None
    if type(kind) is not str or kind not in _DECISIONS:
        message = f"a decision's kind must be one of {', '.join(_DECISIONS)}, not {kind!r}"
        raise InvalidSnapshot(message)
    decision: Decision = _DECISIONS[kind].read({k: v for k, v in value.items() if k != "kind"})
    return decision


def decision_to_json(decision: Decision) -> Json:
    """Write one decision as the wire has it."""
    match decision:
        case Start() | Reserve() | Move() | Resize():
            # Always name the devices: a worker without GPUs has the empty list.
            written = {"devices": [], **_DECISIONS[decision.kind].write(decision)}
        case Stop() | Unreserve() | Wait():
            written = _DECISIONS[decision.kind].write(decision)
        case _:
            assert_never(decision)
    return {"kind": decision.kind, **written}


def plan_to_json(plan: Plan) -> Json:
    """Write a plan with its decisions in order and its projects by name."""
    return {
        "decisions": [decision_to_json(decision) for decision in plan.decisions],
        "projects": {
            name: {
                "quota": OPTIONAL_GPUS.write(share.quota),
                "fair_share": gpu_number(share.fair_share),
                "allocated": gpu_number(share.allocated),
                "over_quota": gpu_number(share.over_quota),
            }
            for name, share in sorted(plan.projects.items())
        },
    }


_PROJECT_SHARE = ObjectFormat(
    "project share",
    ProjectShare,
    {"quota": OPTIONAL_GPUS, "fair_share": GPUS, "allocated": GPUS, "over_quota": GPUS},
)
_PLAN = ObjectFormat(
    "plan",
    Plan,
    {
        "decisions": Field(tuple_of(_read_decision)),
        "projects": Field(mapping_of(_PROJECT_SHARE.read)),
    },
)


def plan_from_json(value: object) -> Plan:
    """Read a plan back; the inverse of `plan_to_json`.

    Raises:
        InvalidSnapshot: a sentence that names what is wrong and where.
    """
    return _PLAN.read(value)
