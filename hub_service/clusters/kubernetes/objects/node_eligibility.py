"""Node eligibility of a pod: selector, required affinity, taints and extended resources. Pure.

These are Kubernetes' own rules; the core gets only the result (`Worker.nodes`). Preferred affinity
is ignored: the core chooses among eligible nodes.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from runai.hub_service.clusters.kubernetes.client.api import Object
from runai.hub_service.clusters.kubernetes.objects.amounts import requested, whole

_CORE_RESOURCES = frozenset({"cpu", "memory", "pods", "nvidia.com/gpu"})
"""Resources that the core counts itself, and `pods`, which no container requests."""
_BLOCKING_EFFECTS = frozenset({"NoSchedule", "NoExecute"})


@dataclass(frozen=True, slots=True)
class Taint:
    """A taint that keeps pods without a matching toleration away."""

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

    def matches(self, of: Mapping[str, str]) -> bool:
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
    """A term of a node selector: all of its expressions must hold."""

    labels: tuple[_Expression, ...]
    fields: tuple[_Expression, ...]

    def matches(self, name: str, labels: Mapping[str, str]) -> bool:
        """Return True if the term matches a node; an empty term matches none."""
        if not self.labels and not self.fields:
            return False
        fields = {"metadata.name": name}
        return all(e.matches(labels) for e in self.labels) and all(
            e.matches(fields) for e in self.fields
        )


@dataclass(frozen=True, slots=True)
class Demands:
    """A pod's requirements on its node besides capacity; equal for all pods of a Job."""

    selector: tuple[tuple[str, str], ...] = ()
    terms: tuple[Term, ...] | None = None
    """One of them must hold; None: no affinity is required."""
    tolerations: tuple[_Toleration, ...] = ()
    volumes: tuple[tuple[Term, ...], ...] = ()
    """Terms of each volume, of which one must hold."""
    stock: tuple[tuple[str, int], ...] = ()
    """Requested extended resources besides GPUs, CPU and memory."""


def read_demands(spec: Object) -> Demands:
    """Parse the demands of a pod spec.

    Raises:
        TypeError: a value is not hashable, which foreign kinds may allow.
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
        stock=_extended_requests(spec),
    )
    hash(demands)  # equal demands share one cache entry
    return demands


def read_stock(has: Mapping[str, str]) -> Mapping[str, int]:
    """Return a node's extended resources besides GPUs, CPU and memory."""
    return {name: whole(amount) for name, amount in has.items() if name not in _CORE_RESOURCES}


def unkept(spec: Object) -> str:
    """Return which requirement of a pod spec this scheduler does not support; "" if none."""
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


def accepted_values(demands: Demands, label: str) -> tuple[str, ...]:
    """Return the values that a pod accepts for a node label, in its order; () if any."""
    for key, value in demands.selector:
        if key == label:
            return (value,)
    found: dict[str, None] = {}
    for term in demands.terms or ():
        values = [e.values for e in term.labels if (e.key, e.operator) == (label, "In")]
        if not values:
            return ()
        found.update(dict.fromkeys(values[0]))
    return tuple(found)


def read_taints(spec: Object) -> tuple[Taint, ...]:
    """Return the taints of a node spec that keep pods away."""
    return tuple(
        Taint(found["key"], found.get("value", ""), found["effect"])
        for found in spec.get("taints", ())
        if found["effect"] in _BLOCKING_EFFECTS
    )


def may_run(
    demands: Demands,
    name: str,
    labels: Mapping[str, str],
    taints: tuple[Taint, ...],
    stock: Mapping[str, int],
) -> bool:
    """Return True if a pod with these demands may run on a node."""
    return not obstacle(demands, name, labels, taints, stock)


def obstacle(
    demands: Demands,
    name: str,
    labels: Mapping[str, str],
    taints: tuple[Taint, ...],
    stock: Mapping[str, int],
) -> str:
    """Return why a pod may not run on a node; "" if it may.

    `stock` is what is left of extended resources.
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
    """Parse the terms of a node selector, of which one must hold."""
    return tuple(
        Term(_expressions(term.get("matchExpressions")), _expressions(term.get("matchFields")))
        for term in found
    )


def on_nodes(*names: str) -> tuple[Term, ...]:
    """Return terms that match exactly these nodes."""
    return (Term((), (_Expression("metadata.name", "In", names),)),)


def any_term(alternatives: Iterable[tuple[Term, ...] | None]) -> tuple[Term, ...] | None:
    """Join alternatives; None among them matches any node. No alternatives match no node."""
    joined: list[Term] = []
    for terms in alternatives:
        if terms is None:
            return None
        joined += terms
    return tuple(joined)


def may_mount(terms: tuple[Term, ...] | None, name: str, labels: Mapping[str, str]) -> bool:
    """Return True if one of the terms matches a node; None: no requirement."""
    return terms is None or any(term.matches(name, labels) for term in terms)


def _containers(spec: Object) -> Iterable[Object]:
    return (*spec.get("containers", ()), *spec.get("initContainers", ()))


def _extended_requests(spec: Object) -> tuple[tuple[str, int], ...]:
    """Return a pod's requests of extended resources besides GPUs, CPU and memory."""
    resources = [container.get("resources", {}) for container in _containers(spec)]
    amounts = [of.get(word, {}) for of in resources for word in ("requests", "limits")]
    names = {name for of in amounts for name in of} - _CORE_RESOURCES
    found = ((name, requested(spec, name, whole)) for name in sorted(names))
    return tuple((name, amount) for name, amount in found if amount)


def _expressions(found: Any) -> tuple[_Expression, ...]:  # noqa: ANN401  JSON, may be missing
    return tuple(
        _Expression(e["key"], e["operator"], tuple(e.get("values") or ())) for e in found or ()
    )
