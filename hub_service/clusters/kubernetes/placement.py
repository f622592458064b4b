"""Which nodes a pod may go to: its selector, its required affinity, the nodes' taints.

Pure. These rules are Kubernetes' own, and the core is only told their outcome (`Worker.nodes`).
Preferences are not looked at: where among eligible nodes a pod goes is the core's decision.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from runai.hub_service.clusters.kubernetes.api import Object

__all__ = ["Demands", "Taint", "may_go", "read_demands", "read_taints"]

_KEEPS_AWAY = frozenset({"NoSchedule", "NoExecute"})


@dataclass(frozen=True, slots=True)
class Taint:
    """What a node has against pods that do not tolerate it."""

    key: str
    value: str
    effect: str


@dataclass(frozen=True, slots=True)
class _Toleration:
    key: str
    operator: str
    value: str
    effect: str

    def covers(self, taint: Taint) -> bool:
        return (
            self.effect in ("", taint.effect)
            and self.key in ("", taint.key)
            and (self.operator == "Exists" or self.value == taint.value)
        )


@dataclass(frozen=True, slots=True)
class _Expression:
    key: str
    operator: str
    values: tuple[str, ...]

    def holds(self, of: Mapping[str, str]) -> bool:
        value = of.get(self.key)
        match self.operator:
            case "In":
                return value in self.values
            case "NotIn":
                return value not in self.values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
        try:
            number, bound = int(value or ""), int(self.values[0])
        except ValueError:
            return False
        return number > bound if self.operator == "Gt" else number < bound


@dataclass(frozen=True, slots=True)
class _Term:
    labels: tuple[_Expression, ...]
    fields: tuple[_Expression, ...]

    def holds(self, name: str, labels: Mapping[str, str]) -> bool:
        if not self.labels and not self.fields:
            return False  # an empty term matches nothing
        fields = {"metadata.name": name}
        return all(e.holds(labels) for e in self.labels) and all(
            e.holds(fields) for e in self.fields
        )


@dataclass(frozen=True, slots=True)
class Demands:
    """What a pod asks of its node beyond room; equal for all pods of a Job."""

    selector: tuple[tuple[str, str], ...] = ()
    terms: tuple[_Term, ...] | None = None
    """One of them must hold; None: no affinity is required."""
    tolerations: tuple[_Toleration, ...] = ()


def read_demands(spec: Object) -> Demands:
    """Read a pod's specification."""
    required = (
        spec.get("affinity", {})
        .get("nodeAffinity", {})
        .get("requiredDuringSchedulingIgnoredDuringExecution")
    )
    return Demands(
        selector=tuple(sorted(spec.get("nodeSelector", {}).items())),
        terms=None
        if required is None
        else tuple(
            _Term(_expressions(term.get("matchExpressions")), _expressions(term.get("matchFields")))
            for term in required["nodeSelectorTerms"]
        ),
        tolerations=tuple(
            _Toleration(
                found.get("key", ""),
                found.get("operator", "Equal"),
                found.get("value", ""),
                found.get("effect", ""),
            )
            for found in spec.get("tolerations", ())
        ),
    )


def read_taints(spec: Object) -> tuple[Taint, ...]:
    """Read those taints of a node's specification that keep pods away."""
    return tuple(
        Taint(found["key"], found.get("value", ""), found["effect"])
        for found in spec.get("taints", ())
        if found["effect"] in _KEEPS_AWAY
    )


def may_go(
    demands: Demands, name: str, labels: Mapping[str, str], taints: tuple[Taint, ...]
) -> bool:
    """Tell whether a pod with these demands may go to a node."""
    return (
        all(labels.get(key) == value for key, value in demands.selector)
        and (demands.terms is None or any(term.holds(name, labels) for term in demands.terms))
        and all(any(t.covers(taint) for t in demands.tolerations) for taint in taints)
    )


def _expressions(found: Any) -> tuple[_Expression, ...]:  # noqa: ANN401  JSON, may be missing
    return tuple(
        _Expression(e["key"], e["operator"], tuple(e.get("values") or ())) for e in found or ()
    )
