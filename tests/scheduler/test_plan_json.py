"""Plans as JSON: written as the interface specifies, and parsed back unchanged."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runai.hub_service.scheduler import (
    AllowMoves,
    ChangeRequest,
    Counterfactual,
    DeviceShare,
    EndWorkloads,
    ExpectedStart,
    Explanation,
    Holder,
    MilliGpu,
    Move,
    Plan,
    ProjectShare,
    Reason,
    Reserve,
    Resize,
    SetProject,
    Start,
    Stop,
    Unreserve,
    Wait,
)
from runai.hub_service.scheduler.model.json_codec import InvalidSnapshot
from runai.hub_service.scheduler.model.plan_json import plan_from_json, plan_to_json

REASON = Reason(code="reclaimed", rule="R2", text="because", for_="w")
DEVICES = (DeviceShare(3, MilliGpu(1000)), DeviceShare(4, MilliGpu(1000)))
EXPLANATION = Explanation(
    ahead=("v",),
    holders=(Holder(workload="b", project="p", gpus=MilliGpu(500), until=7, is_estimated=True),),
    counterfactuals=(
        Counterfactual(
            changes=(
                EndWorkloads(workloads=("b",)),
                SetProject(project="p", setting="quota", value=2500),
                SetProject(project="p", setting="limit", value=None),
                SetProject(project="p", setting="min_runtime", value=60),
                ChangeRequest(workload="w", gpus=MilliGpu(500), workers=2, preemptible=True),
                AllowMoves(),
            ),
            text="would start if",
            protected_until=9,
        ),
    ),
    expected_start=ExpectedStart(at=5, earliest=4, latest=None, is_estimated=True, text="soon"),
)
PLAN = Plan(
    decisions=(
        Unreserve(workload="z", worker="z-0"),
        Stop(workload="b", worker="b-0", reason=REASON),
        Move(workload="e", worker="e-0", node="n", devices=DEVICES, reason=REASON),
        Resize(workload="r", worker="r-0", node="n", devices=DEVICES, reason=REASON),
        Start(workload="p", worker="p-0", node="n", devices=DEVICES),
        Start(workload="cpu", worker="cpu-0", node="n"),
        Reserve(workload="q", worker="q-0", node="n", devices=DEVICES, waits_for=("b-0",)),
        Wait(
            workload="w",
            reason=Reason(code="no_room", rule="P1", text="full"),
            position=1,
            explanation=EXPLANATION,
        ),
    ),
    projects={
        "b": ProjectShare(
            quota=None, fair_share=MilliGpu(500), allocated=MilliGpu(0), over_quota=MilliGpu(0)
        )
    },
)


def test_plan_is_unchanged_by_a_json_round_trip() -> None:
    assert plan_from_json(json.loads(json.dumps(plan_to_json(PLAN)))) == PLAN


NAMES = st.text(min_size=1, max_size=3)
TIMES = st.none() | st.integers()
GPUS = st.integers(0, 10**6).map(MilliGpu)


def _tuples_of(values: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(values, max_size=3).map(tuple)


CHANGES = (
    st.builds(EndWorkloads, workloads=_tuples_of(NAMES))
    | st.builds(
        ChangeRequest,
        workload=NAMES,
        gpus=st.none() | GPUS,
        workers=st.none() | st.integers(1, 9),
        priority=TIMES,
        preemptible=st.none() | st.booleans(),
        max_runtime=st.none() | st.integers(1, 9),
        anywhere=st.booleans(),
    )
    | st.builds(AllowMoves)
    | st.builds(SetProject, project=NAMES, value=st.none() | GPUS)
)
EXPLANATIONS = st.builds(
    Explanation,
    ahead=_tuples_of(NAMES),
    holders=_tuples_of(st.builds(Holder, project=NAMES, gpus=GPUS, until=TIMES)),
    counterfactuals=_tuples_of(
        st.builds(Counterfactual, changes=_tuples_of(CHANGES), protected_until=TIMES)
    ),
)


@given(EXPLANATIONS)
def test_explanation_is_unchanged_by_a_json_round_trip(explanation: Explanation) -> None:
    wait = Wait(workload="w", reason=REASON, position=1, explanation=explanation)
    plan = Plan(decisions=(wait,))

    assert plan_from_json(json.loads(json.dumps(plan_to_json(plan)))) == plan


def test_plan_json_has_the_documented_format() -> None:
    written = plan_to_json(PLAN)
    stop, start, reserve = (written["decisions"][index] for index in (1, 5, 6))

    assert stop == {
        "kind": "stop",
        "workload": "b",
        "worker": "b-0",
        "reason": {"code": "reclaimed", "rule": "R2", "for": "w", "text": "because"},
    }
    assert start == {
        "kind": "start",
        "workload": "cpu",
        "worker": "cpu-0",
        "node": "n",
        "devices": [],
    }
    assert reserve["devices"][0] == {"device": 3, "gpus": 1}
    assert written["projects"] == {
        "b": {"quota": None, "fair_share": 0.5, "allocated": 0, "over_quota": 0}
    }


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (
            {"decisions": [{"kind": "nap"}]},
            (
                "a kind must be one of start, stop, reserve, unreserve, move, resize,"
                " wait, not 'nap'"
            ),
        ),
        (
            {"decisions": [{"kind": "unreserve", "workload": "w"}]},
            "unreserve: worker is missing",
        ),
    ],
    ids=["unknown kind", "missing field"],
)
def test_invalid_plan_json_is_refused_with_its_cause(document: object, message: str) -> None:
    with pytest.raises(InvalidSnapshot) as error:
        plan_from_json(document)

    assert str(error.value) == message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "sell"}, "a kind must be one of end, set, ask, consolidate, not 'sell'"),
        (
            {"kind": "set", "project": "p", "setting": "colour", "value": 1},
            "a set names project, value and a setting: one of quota, build_quota, limit,",
        ),
        (
            {"kind": "set", "project": "p", "setting": "quota", "value": -1},
            "set quota: value must be a number of GPUs from 0 upwards, not -1",
        ),
    ],
    ids=["unknown kind", "unknown setting", "negative value"],
)
def test_invalid_counterfactual_change_in_plan_json_is_named_in_the_error(
    change: dict[str, object], message: str
) -> None:
    written = plan_to_json(PLAN)
    written["decisions"][-1]["explanation"]["counterfactuals"][0]["changes"] = [change]

    with pytest.raises(InvalidSnapshot) as error:
        plan_from_json(written)

    assert message in str(error.value)
