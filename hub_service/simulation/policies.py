"""The compared policies: private parts per project, one pool without quotas, guaranteed quotas.

Each policy divides the cluster into parts that are scheduled independently by the same `decide`.
Only "strict" needs support in the engine, which then starts no job behind a waiting one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, get_args

from runai.hub_service.scheduler.model.snapshot import LeftOut, Node, Policy, Project
from runai.hub_service.wire.errors import InvalidRequest

PolicyName = Literal[
    "static-whole", "static-strict", "static", "pool-strict", "pool", "quota", "quota-without-moves"
]
POLICIES: Final[tuple[PolicyName, ...]] = get_args(PolicyName)

POOL: Final = "pool"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartPlan:
    """Nodes that are scheduled independently, with their projects and policy."""

    nodes: tuple[Node, ...]
    projects: tuple[Project, ...]
    policy: Policy
    owners: tuple[str, ...]
    """Projects with jobs in this part."""
    queue: str | None = None
    """The single project for all jobs; None: each job keeps its own project."""
    is_strict: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether the order is by age only: one queue without kinds and priorities."""
        return self.queue is not None


def parts_of(
    name: PolicyName,
    nodes: Sequence[Node],
    projects: Sequence[Project],
    owners: Iterable[str],
    base: Policy,
) -> list[PartPlan]:
    """Divide the cluster into independently scheduled parts, according to a policy.

    "quota" is `base` as it is. `owners` are the projects with jobs; static policies give each of
    them GPUs of its own.

    Raises:
        InvalidRequest: the policy is static, and an owner's quota is unlimited.
    """
    owners = sorted(owners)
    base = replace(base, explain="none")
    if name in {"quota", "quota-without-moves"}:
        if name == "quota-without-moves":
            phases = tuple(phase for phase in base.phases if phase != "consolidate")
            base = replace(base, phases=phases, quota_moves=False)
        return [
            PartPlan(
                nodes=tuple(nodes),
                projects=tuple(projects),
                policy=base,
                owners=tuple(owners),
            )
        ]
    alone = replace(base, phases=("allocate",))
    is_strict = name.endswith("-strict")
    if name in {"pool", "pool-strict"}:
        cut = [(tuple(owners), tuple(nodes))]
    else:
        cut = [((owner,), part) for owner, part in _private_parts(nodes, projects, owners).items()]
    return [
        PartPlan(
            nodes=part,
            projects=(Project(name=POOL, quota=None),),
            policy=alone,
            owners=part_owners,
            queue=POOL,
            is_strict=is_strict,
        )
        for part_owners, part in cut
    ]


def quotas_of(projects: Sequence[Project]) -> dict[str, int | None]:
    """Return each project's quota in milli-GPU; None is unlimited."""
    children: dict[str | None, list[str]] = {}
    for project in projects:
        children.setdefault(project.parent, []).append(project.name)
    given = {project.name: project for project in projects}

    def quota(name: str) -> int | None:
        project = given[name]
        if project.quota_by_type is not None:
            parts: list[int | None] = list(project.quota_by_type.values())
        elif project.quota is LeftOut.SUM_OF_CHILDREN:
            parts = [quota(child) for child in children.get(name, ())]
        else:
            parts = [project.quota]
        known = [part for part in parts if part is not None]
        return sum(known) if len(known) == len(parts) else None

    return {name: quota(name) for name in given}


def _private_parts(
    nodes: Sequence[Node], projects: Sequence[Project], owners: Sequence[str]
) -> Mapping[str, tuple[Node, ...]]:
    """Divide the GPUs in proportion to the quotas, in whole nodes where possible."""
    quotas = quotas_of(projects)
    parts: dict[str, int] = {}
    for owner in owners:
        quota = quotas.get(owner, 0)
        if quota is None:
            raise InvalidRequest(
                f"The quota of project {owner} is unlimited, so its private part has no size.",
                hint=f"Give it a number for this comparison: --set {owner}.quota=8.",
            )
        parts[owner] = quota
    left = _in_proportion(parts, sum(node.devices for node in nodes))
    given: dict[str, list[Node]] = {owner: [] for owner in owners}
    for node in sorted(nodes, key=lambda node: (-node.devices, node.name)):
        rest = node.devices
        while rest and any(left.values()):
            owner = min(left, key=lambda owner: (-left[owner], owner))
            devices = min(rest, left[owner])
            given[owner].append(node if devices == node.devices else replace(node, devices=devices))
            left[owner] -= devices
            rest -= devices
    return {owner: tuple(part) for owner, part in given.items()}


def _in_proportion(parts: Mapping[str, int], whole: int) -> dict[str, int]:
    """Divide a number in proportion to `parts`, by the largest remainder method."""
    total = sum(parts.values()) or 1
    divided = {owner: divmod(whole * part, total) for owner, part in parts.items()}
    given = {owner: quotient for owner, (quotient, _) in divided.items()}
    lacking = whole - sum(given.values()) if any(parts.values()) else 0
    for owner in sorted(divided, key=lambda owner: (-divided[owner][1], owner))[:lacking]:
        given[owner] += 1
    return given
