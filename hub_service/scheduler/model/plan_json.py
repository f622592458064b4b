"""JSON of plans, as `runai schedule` prints them and the API returns them.

Values are decoded JSON (dicts and lists), not text. The fields are the dataclasses' own.
"""

from __future__ import annotations

from typing import Any, get_args

from runai.hub_service.scheduler.model.explanation import GpuSetting, SetProject, WholeSetting
from runai.hub_service.scheduler.model.json_codec import (
    CODECS,
    DataclassCodec,
    FieldCodec,
    InvalidSnapshot,
    codec_of,
)
from runai.hub_service.scheduler.model.quantity import MilliGpu, Name
from runai.hub_service.scheduler.model.snapshot import Decision, Plan

Json = dict[str, Any]


def _read_setting(value: dict[str, Any]) -> SetProject:
    settings = (*get_args(GpuSetting), *get_args(WholeSetting))
    setting: Any = value.get("setting")
    if set(value) != {"project", "setting", "value"} or setting not in settings:
        message = f"a set names project, value and a setting: one of {', '.join(settings)}"
        raise InvalidSnapshot(message)
    try:
        return SetProject(
            project=codec_of(Name).read(value["project"]),
            setting=setting,
            value=_value_codec(setting).read(value["value"]),
        )
    except ValueError as error:
        message = f"set {setting}: value {error}"
        raise InvalidSnapshot(message) from None


def _write_setting(change: SetProject) -> Json:
    written = _value_codec(change.setting).write(change.value)
    return {"project": change.project, "setting": change.setting, "value": written}


def _value_codec(setting: str) -> FieldCodec:
    return codec_of(MilliGpu | None if setting in get_args(GpuSetting) else int | None)


CODECS[SetProject] = FieldCodec(_read_setting, _write_setting)
_PLAN = DataclassCodec(Plan)


def decision_to_json(decision: Decision) -> Json:
    """Return one decision as JSON."""
    # Always include `devices`: a worker without GPUs has the empty list.
    devices: Json = {"devices": []} if hasattr(decision, "devices") else {}
    return {"kind": decision.kind, **devices, **codec_of(type(decision)).write(decision)}


def plan_to_json(plan: Plan) -> Json:
    """Return a plan as JSON: decisions in order, projects by name."""
    return {
        "decisions": [decision_to_json(decision) for decision in plan.decisions],
        "projects": {
            name: codec_of(type(share)).write(share)
            for name, share in sorted(plan.projects.items())
        },
    }


def plan_from_json(value: object) -> Plan:
    """Parse a plan; the inverse of `plan_to_json`.

    Raises:
        InvalidSnapshot: the message names the mistake and its place.
    """
    return _PLAN.read(value)
