"""Explanations as JSON: the `explanation` of a wait, and the changes of a counterfactual.

Knows every field on the wire; decoded JSON in and out, never text. Used by `plan_wire`.
"""

from __future__ import annotations

from typing import Any

from runai.hub_service.scheduler.explanation import (
    AllowMoves,
    AskOtherwise,
    Change,
    Counterfactual,
    EndWorkloads,
    ExpectedStart,
    Explanation,
    Holder,
    SetProject,
)
from runai.hub_service.scheduler.fields import (
    GPUS,
    NAMES,
    OPTIONAL_GPUS,
    Field,
    InvalidSnapshot,
    ObjectFormat,
    optional,
    read_flag,
    read_gpus,
    read_name,
    read_positive,
    read_text,
    read_whole,
    tuple_of,
)
from runai.hub_service.scheduler.quantity import gpu_number

Json = dict[str, Any]

GPU_SETTINGS = ("quota", "build_quota", "limit", "never_lent")
WHOLE_SETTINGS = ("weight", "priority", "min_runtime")

_NAME = Field(read_name)
_TEXT = Field(read_text)
_FLAG = Field(read_flag)
_OPTIONAL_WHOLE = Field(optional(read_whole))
_OPTIONAL_POSITIVE = Field(optional(read_positive))

_CHANGES: dict[str, ObjectFormat[Any]] = {
    "end": ObjectFormat("end", EndWorkloads, {"workloads": NAMES}),
    "ask": ObjectFormat(
        "ask",
        AskOtherwise,
        {
            "workload": _NAME,
            "gpus": OPTIONAL_GPUS,
            "workers": _OPTIONAL_POSITIVE,
            "priority": _OPTIONAL_WHOLE,
            "preemptible": Field(optional(read_flag)),
            "anywhere": _FLAG,
        },
    ),
    "consolidate": ObjectFormat("consolidate", AllowMoves, {}),
}


def _read_change(value: Any) -> Change:  # noqa: ANN401  decoded JSON
    kind = value.get("kind") if type(value) is dict else None
    if kind == "set":
        return _read_setting(value)
    if type(kind) is not str or kind not in _CHANGES:
        message = f"a change's kind must be one of set, {', '.join(_CHANGES)}, not {kind!r}"
        raise InvalidSnapshot(message)
    change: Change = _CHANGES[kind].read({k: v for k, v in value.items() if k != "kind"})
    return change


def _read_setting(value: Json) -> SetProject:
    known = (*GPU_SETTINGS, *WHOLE_SETTINGS)
    setting = value.get("setting")
    if set(value) != {"kind", "project", "setting", "value"} or setting not in known:
        message = f"a set names project, value and a setting: one of {', '.join(known)}"
        raise InvalidSnapshot(message)
    read = read_gpus if setting in GPU_SETTINGS else read_whole
    try:
        return SetProject(
            project=read_name(value["project"]),
            setting=setting,
            value=optional(read)(value["value"]),
        )
    except ValueError as error:
        message = f"set {setting}: value {error}"
        raise InvalidSnapshot(message) from None


def _write_change(change: Change) -> Json:
    if isinstance(change, SetProject):
        amount = change.value
        if amount is not None and change.setting in GPU_SETTINGS:
            written: Json = {"value": gpu_number(amount)}
        else:
            written = {"value": amount}
        return {"kind": "set", "project": change.project, "setting": change.setting, **written}
    return {"kind": change.kind, **_CHANGES[change.kind].write(change)}


_COUNTERFACTUAL = ObjectFormat(
    "counterfactual",
    Counterfactual,
    {
        "changes": Field(tuple_of(_read_change), lambda cs: [_write_change(c) for c in cs]),
        "text": _TEXT,
        "protected_until": _OPTIONAL_WHOLE,
    },
)
_START = ObjectFormat(
    "expected_start",
    ExpectedStart,
    {
        "at": _OPTIONAL_WHOLE,
        "earliest": _OPTIONAL_WHOLE,
        "latest": _OPTIONAL_WHOLE,
        "is_estimated": _FLAG,
        "text": _TEXT,
    },
)
_HOLDER = ObjectFormat(
    "holder",
    Holder,
    {
        "workload": _TEXT,
        "project": _NAME,
        "user": _TEXT,
        "gpus": GPUS,
        "until": _OPTIONAL_WHOLE,
        "is_estimated": _FLAG,
    },
)
EXPLANATION = ObjectFormat(
    "explanation",
    Explanation,
    {
        "ahead": NAMES,
        "holders": Field(tuple_of(_HOLDER.read), lambda hs: [_HOLDER.write(h) for h in hs]),
        "counterfactuals": Field(
            tuple_of(_COUNTERFACTUAL.read), lambda cs: [_COUNTERFACTUAL.write(c) for c in cs]
        ),
        "expected_start": Field(_START.read, _START.write),
    },
)
