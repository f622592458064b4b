"""The project tree with resolved defaults and current allocations.

Each node has its quotas, limits and weights, and three sums maintained up the tree: allocated,
build (non-preemptible) and requested.
"""

from __future__ import annotations

from collections.abc import Iterable

from runai.hub_service.scheduler.model.quantity import WHOLE_GPU
from runai.hub_service.scheduler.model.snapshot import LeftOut, Project, Quota, Snapshot, Workload

UNLIMITED = 1 << 62
""""No limit" in comparisons; larger than any sum of milli-GPU."""

ANY_OTHER = "*"
"""Key of a quota table for all GPU types missing in it (Q4)."""

Age = tuple[int, str]
"""Time of creation or submission, then the name. These are the last two keys of every sort
order."""


class ProjectNode:
    """A project in the tree. Amounts in milli-GPU, `UNLIMITED` if there is no bound."""

    __slots__ = (
        "age",
        "allocated",
        "build",
        "build_quota",
        "children",
        "fair_share",
        "gpu_type",
        "limit",
        "min_runtime",
        "name",
        "never_lent",
        "parent",
        "parts",
        "path",
        "priority",
        "quota",
        "reach",
        "requested",
        "spec",
        "terminating",
        "usage",
        "weight",
    )

    def __init__(self, project: Project, parent: ProjectNode | None) -> None:
        self.spec = project
        self.name = project.name
        self.parent = parent
        self.children: list[ProjectNode] = []
        self.path: tuple[ProjectNode, ...] = (self, *(parent.path if parent else ()))
        self.age: Age = (project.created, project.name)
        self.priority = project.priority
        self.limit = UNLIMITED if project.limit is None else project.limit
        self.min_runtime = project.min_runtime
        self.never_lent: int = project.never_lent
        self.quota = 0
        self.build_quota = 0
        self.weight = 0
        self.fair_share = 0
        self.allocated = 0
        self.terminating = 0
        """Allocation of stopping workers, which `limit` counts until they end (Q3)."""
        self.build = 0
        self.requested = 0
        self.usage = 0
        """Recent usage, decayed (S5); only its ratio to the siblings' usage matters."""
        self.parts: list[ProjectNode] = []
        """Accounts of its quotas by GPU type (Q4); usually empty."""
        self.gpu_type: str | None = None
        """GPU type of such a part, or `ANY_OTHER`."""
        self.reach = UNLIMITED
        """Capacity of its allowed GPU types, an upper bound of its fair share (Q4)."""

    @property
    def is_unlimited(self) -> bool:
        """Return True if its quota has no bound."""
        return self.quota >= UNLIMITED

    @property
    def siblings(self) -> list[ProjectNode]:
        """Return the parts of its project's quota, itself included (Q4)."""
        return self.parent.parts if self.parent else []

    @property
    def overage(self) -> int:
        """Return its allocation beyond its entitlement; negative if it is below (R4).

        A limit that was lowered while work ran bounds the entitlement (Q3).
        """
        over = self.allocated - max(self.quota, self.fair_share)
        return max(over, self.over_limit) if self.over_limit else over

    @property
    def over_limit(self) -> int:
        """Return its allocation beyond its limit, which was lowered while work ran (Q3)."""
        return max(0, self.allocated - self.limit)

    @property
    def reclaim_order(self) -> tuple[int, int, Age]:
        """Return the key by which projects give back, the first to give last (R4).

        What is above a lowered limit goes before everything else (Q3).
        """
        return self.over_limit, self.overage, self.age


class ProjectTree:
    """All project nodes by name, and the roots that share the cluster."""

    def __init__(self, projects: Iterable[Project], with_workloads: Iterable[str] = ()) -> None:
        """Resolve defaults; `with_workloads` names projects that own workloads themselves."""
        specs = {project.name: project for project in projects}
        self.projects: dict[str, ProjectNode] = {}
        self.roots: list[ProjectNode] = []
        for name in sorted(specs):
            self._add(name, specs, set())
        for root in self.roots:
            _resolve(root)
        parents = {
            name
            for name, project in self.projects.items()
            if project.children and not project.parts
        }
        self._queues = {n: project for n, project in self.projects.items() if n not in parents}
        for name in parents.intersection(with_workloads):
            self._queues[name] = _add_own_queue(self.projects[name])
        self.has_parts = any(project.parts for project in self.projects.values())
        """True if any quota is a table by GPU type (Q4)."""
        self.holders = [a for a in self.projects.values() if a.never_lent]

    def _add(self, name: str, specs: dict[str, Project], descendants: set[str]) -> ProjectNode:
        """Add a project unless it is there, its parent first; return its node."""
        present = self.projects.get(name)
        if present is not None:
            return present
        project = specs[name]
        parent = None
        # `decide` accepts any snapshot: a project with a missing or circular parent is a root.
        if project.parent in specs and project.parent not in descendants | {name}:
            parent = self._add(project.parent, specs, descendants | {name})
        node = ProjectNode(project, parent)
        self.projects[name] = node
        (self.roots if parent is None else parent.children).append(node)
        return node

    def queue_of(self, project: str) -> ProjectNode | None:
        """Return the node that workloads of this project are charged to."""
        return self._queues.get(project)

    def has_left(self, workload: Workload) -> bool:
        """Return True if a workload's user is no member of its project any more."""
        project = self.projects.get(workload.project)
        return project is not None and workload.user in project.spec.former_members

    def lacks_queue(self, project: str) -> bool:
        """Return True if a project exists without a node for its own workloads."""
        return project in self.projects and project not in self._queues


def _add_own_queue(node: ProjectNode) -> ProjectNode:
    """Add a node for a parent's own workloads beside its children.

    Its quota is the rest of the parent's quota after the children's.
    """
    own_node = ProjectNode(Project(name=node.name, created=node.spec.created), node)
    own_node.name = f"{node.name} itself"
    own_node.priority = node.priority
    remaining = node.quota - sum(child.quota for child in node.children)
    own_node.quota = UNLIMITED if node.is_unlimited else max(0, remaining)
    own_node.build_quota = UNLIMITED  # the parent's own cap applies further up the path
    own_node.weight = WHOLE_GPU if own_node.is_unlimited else own_node.quota or WHOLE_GPU
    node.children.append(own_node)
    return own_node


def _quota_of(node: ProjectNode) -> int:
    """Return a project's quota in milli-GPU; its children are resolved already."""
    quota: Quota = node.spec.quota
    table = node.spec.quota_by_type
    if table is not None:
        # Q4: checked per type where the project owns workloads; a parent's quota is the sum.
        return UNLIMITED if None in table.values() else sum(v for v in table.values() if v)
    if quota is None:
        return UNLIMITED
    if quota is LeftOut.SUM_OF_CHILDREN:
        return min(UNLIMITED, sum(child.quota for child in node.children))
    return quota


def _resolve(node: ProjectNode) -> None:
    """Set quota, usage and weight of a project and its descendants, children first."""
    for child in node.children:
        _resolve(child)
    node.quota = _quota_of(node)
    project = node.spec
    children_usage = sum(child.usage for child in node.children)
    node.usage = children_usage if project.usage is None else project.usage
    build = UNLIMITED if project.build_quota is None else project.build_quota
    node.build_quota = min(build, node.quota)
    if project.weight is not None:
        node.weight = project.weight * WHOLE_GPU
    else:
        node.weight = WHOLE_GPU if node.is_unlimited else node.quota
    _add_parts(node)


def _add_parts(node: ProjectNode) -> None:
    """Add a node for each entry of a project's table of quotas (Q4)."""
    project = node.spec
    table = project.quota_by_type
    if table is None or node.children:
        return
    for gpu_type in sorted({*table, ANY_OTHER}):
        name = f"{node.name} on {'other GPUs' if gpu_type == ANY_OTHER else gpu_type}"
        part_node = ProjectNode(Project(name=name, created=project.created), node)
        part_node.gpu_type = gpu_type
        part_node.priority = node.priority
        part_node.usage = node.usage
        quota = table.get(gpu_type, 0)
        part_node.quota = part_node.build_quota = UNLIMITED if quota is None else quota
        if project.weight is not None:
            part_node.weight = node.weight
        else:
            part_node.weight = WHOLE_GPU if part_node.is_unlimited else part_node.quota
        node.parts.append(part_node)
    node.children = node.parts


def tree_of(snapshot: Snapshot) -> ProjectTree:
    """Build the project tree of a snapshot."""
    return ProjectTree(snapshot.projects, {w.project for w in snapshot.workloads})
