"""Which nodes a pod may go to: its selector, its required affinity, the nodes' taints and stock.

Pure. These rules are Kubernetes' own, and the core is only told their outcome (`Worker.nodes`).
Preferences are not looked at: where among eligible nodes a pod goes is the core's decision.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from runai.hub_service.clusters.kubernetes.client.api import Object
from runai.hub_service.clusters.kubernetes.objects.amounts import requested, whole

_COUNTED = frozenset({"cpu", "memory", "pods", "nvidia.com/gpu"})
"""What the core keeps count of, and what nobody asks for."""
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
            number, bound = int(value or ""), int(self.values[0] if self.values else "")
        except ValueError:
            return False
        return number > bound if self.operator == "Gt" else number < bound


@dataclass(frozen=True, slots=True)
class Term:
    """A term of a node selector: all of its expressions hold."""

    labels: tuple[_Expression, ...]
    fields: tuple[_Expression, ...]

    def holds(self, name: str, labels: Mapping[str, str]) -> bool:
        """Tell whether it holds of a node; an empty term holds of none."""
        if not self.labels and not self.fields:
            return False
        fields = {"metadata.name": name}
        return all(e.holds(labels) for e in self.labels) and all(
            e.holds(fields) for e in self.fields
        )


@dataclass(frozen=True, slots=True)
class Demands:
    """What a pod asks of its node beyond room; equal for all pods of a Job."""

    selector: tuple[tuple[str, str], ...] = ()
    terms: tuple[Term, ...] | None = None
    """One of them must hold; None: no affinity is required."""
    tolerations: tuple[_Toleration, ...] = ()
    volumes: tuple[tuple[Term, ...], ...] = ()
    """Of each of its volumes: one of the terms must hold."""
    stock: tuple[tuple[str, int], ...] = ()
    """How much of what else nodes have, beside GPUs, CPU and memory."""


def read_demands(spec: Object) -> Demands:
    """Read a pod's specification.

    Raises:
        TypeError: something is no text, which another kind than a pod may allow.
    """
    required = (
        spec.get("affinity", {})
        .get("nodeAffinity", {})
        .get("requiredDuringSchedulingIgnoredDuringExecution")
    )
    demands = Demands(
        selector=tuple(sorted(spec.get("nodeSelector", {}).items())),
        terms=None if required is None else read_terms(required["nodeSelectorTerms"]),
        tolerations=tuple(
            _Toleration(
                found.get("key", ""),
                found.get("operator", "Equal"),
                found.get("value", ""),
                found.get("effect", ""),
            )
            for found in spec.get("tolerations", ())
        ),
        stock=_asked(spec),
    )
    hash(demands)  # equal ones are looked up together
    return demands


def read_stock(has: Mapping[str, str]) -> Mapping[str, int]:
    """Read what a node has that is neither GPUs nor CPU nor memory."""
    return {name: whole(amount) for name, amount in has.items() if name not in _COUNTED}


def unkept(spec: Object) -> str:
    """Say which wish of a pod's specification this scheduler cannot keep; "" is none."""
    affinity = spec.get("affinity", {})
    if any(
        rules.get("requiredDuringSchedulingIgnoredDuringExecution")
        for rules in (affinity.get("podAffinity", {}), affinity.get("podAntiAffinity", {}))
    ):
        return "affinity between pods cannot be kept by this scheduler: remove it"
    if any(
        c["whenUnsatisfiable"] == "DoNotSchedule" for c in spec.get("topologySpreadConstraints", ())
    ):
        return "a topology spread cannot be kept by this scheduler: use ScheduleAnyway or remove it"
    if spec.get("resourceClaims"):
        return "resourceClaims cannot be kept by this scheduler: request nvidia.com/gpu instead"
    ports = (port for container in _containers(spec) for port in container.get("ports", ()))
    if any(port.get("hostPort") for port in ports):
        return "ports of the node (hostPort) cannot be kept apart by this scheduler: remove them"
    return ""


def wanted(demands: Demands, label: str) -> tuple[str, ...]:
    """Return the values of a node's label of which a pod demands one; () where it demands none."""
    for key, value in demands.selector:
        if key == label:
            return (value,)
    found: set[str] = set()
    for term in demands.terms or ():
        values = [e.values for e in term.labels if (e.key, e.operator) == (label, "In")]
        if not values:
            return ()
        found.update(values[0])
    return tuple(sorted(found))


def read_taints(spec: Object) -> tuple[Taint, ...]:
    """Read those taints of a node's specification that keep pods away."""
    return tuple(
        Taint(found["key"], found.get("value", ""), found["effect"])
        for found in spec.get("taints", ())
        if found["effect"] in _KEEPS_AWAY
    )


def may_go(
    demands: Demands,
    name: str,
    labels: Mapping[str, str],
    taints: tuple[Taint, ...],
    stock: Mapping[str, int],
) -> bool:
    """Tell whether a pod with these demands may go to a node."""
    return not obstacle(demands, name, labels, taints, stock)


def obstacle(
    demands: Demands,
    name: str,
    labels: Mapping[str, str],
    taints: tuple[Taint, ...],
    stock: Mapping[str, int],
) -> str:
    """Say what a node has against a pod with these demands; "" is nothing.

    `stock` is what is left there beside GPUs, CPU and memory.
    """
    if not all(labels.get(key) == value for key, value in demands.selector):
        return "other labels than its nodeSelector names"
    if not may_mount(demands.terms, name, labels):
        return "other labels than its node affinity requires"
    if not all(may_mount(terms, name, labels) for terms in demands.volumes):
        return "no way to its volumes"
    for taint in taints:
        if not any(t.covers(taint) for t in demands.tolerations):
            return f"a taint that it does not tolerate ({taint.key})"
    for resource, amount in demands.stock:
        if stock.get(resource, 0) < amount:
            return f"too little {resource}"
    return ""


def read_terms(found: Iterable[Object]) -> tuple[Term, ...]:
    """Read the terms of a node selector, of which one must hold."""
    return tuple(
        Term(_expressions(term.get("matchExpressions")), _expressions(term.get("matchFields")))
        for term in found
    )


def on_nodes(*names: str) -> tuple[Term, ...]:
    """Return the terms that hold of these nodes alone."""
    return (Term((), (_Expression("metadata.name", "In", names),)),)


def any_term(alternatives: Iterable[tuple[Term, ...] | None]) -> tuple[Term, ...] | None:
    """Join alternatives, of which None is any node; there may be none, which holds of no node."""
    joined: list[Term] = []
    for terms in alternatives:
        if terms is None:
            return None
        joined += terms
    return tuple(joined)


def may_mount(terms: tuple[Term, ...] | None, name: str, labels: Mapping[str, str]) -> bool:
    """Tell whether one of these terms holds of a node; None: nothing is required."""
    return terms is None or any(term.holds(name, labels) for term in terms)


def _containers(spec: Object) -> Iterable[Object]:
    return (*spec.get("containers", ()), *spec.get("initContainers", ()))


def _asked(spec: Object) -> tuple[tuple[str, int], ...]:
    """Return how much a pod asks for of what is neither GPUs nor CPU nor memory."""
    asks = [container.get("resources", {}) for container in _containers(spec)]
    amounts = [of.get(word, {}) for of in asks for word in ("requests", "limits")]
    names = {name for of in amounts for name in of} - _COUNTED
    found = ((name, requested(spec, name, whole)) for name in sorted(names))
    return tuple((name, amount) for name, amount in found if amount)


def _expressions(found: Any) -> tuple[_Expression, ...]:  # noqa: ANN401  JSON, may be missing
    return tuple(
        _Expression(e["key"], e["operator"], tuple(e.get("values") or ())) for e in found or ()
    )
