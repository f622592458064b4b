"""The project tree with resolved defaults and current allocations.

Each account has its quotas, limits and weights, and three sums maintained up the tree: allocated,
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
        "leaving",
        "limit",
        "min_runtime",
        "name",
        "never_lent",
        "parent",
        "parts",
        "path",
        "priority",
        "project",
        "quota",
        "reach",
        "requested",
        "usage",
        "weight",
    )

    def __init__(self, project: Project, parent: ProjectNode | None) -> None:
        self.project = project
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
        self.leaving = 0
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
    """All accounts by name, and the roots that share the cluster."""

    def __init__(self, projects: Iterable[Project], with_workloads: Iterable[str] = ()) -> None:
        """Resolve defaults; `with_workloads` names projects that own workloads themselves."""
        given = {project.name: project for project in projects}
        self.accounts: dict[str, ProjectNode] = {}
        self.roots: list[ProjectNode] = []
        for name in sorted(given):
            self._add(name, given, set())
        for root in self.roots:
            _resolve(root)
        parents = {
            name
            for name, account in self.accounts.items()
            if account.children and not account.parts
        }
        self._queues = {n: account for n, account in self.accounts.items() if n not in parents}
        for name in parents.intersection(with_workloads):
            self._queues[name] = _own_queue(self.accounts[name])
        self.has_parts = any(account.parts for account in self.accounts.values())
        """True if any quota is a table by GPU type (Q4)."""
        self.holders = [a for a in self.accounts.values() if a.never_lent]

    def _add(self, name: str, given: dict[str, Project], above: set[str]) -> ProjectNode:
        known = self.accounts.get(name)
        if known is not None:
            return known
        project = given[name]
        parent = None
        # `decide` accepts any snapshot: a project with a missing or circular parent is a root.
        if project.parent in given and project.parent not in above | {name}:
            parent = self._add(project.parent, given, above | {name})
        account = ProjectNode(project, parent)
        self.accounts[name] = account
        (self.roots if parent is None else parent.children).append(account)
        return account

    def queue_of(self, project: str) -> ProjectNode | None:
        """Return the account that workloads of this project are charged to."""
        return self._queues.get(project)

    def has_left(self, workload: Workload) -> bool:
        """Return True if a workload's user is no member of its project any more."""
        account = self.accounts.get(workload.project)
        return account is not None and workload.user in account.project.former_members

    def lacks_queue(self, project: str) -> bool:
        """Return True if a project exists without an account for its own workloads."""
        return project in self.accounts and project not in self._queues


def _own_queue(account: ProjectNode) -> ProjectNode:
    """Add an account for a parent's own workloads beside its children.

    Its quota is the rest of the parent's quota after the children's.
    """
    own = ProjectNode(Project(name=account.name, created=account.project.created), account)
    own.name = f"{account.name} itself"
    own.priority = account.priority
    left = account.quota - sum(child.quota for child in account.children)
    own.quota = UNLIMITED if account.is_unlimited else max(0, left)
    own.build_quota = UNLIMITED  # the parent's own cap applies further up the path
    own.weight = WHOLE_GPU if own.is_unlimited else own.quota or WHOLE_GPU
    account.children.append(own)
    return own


def _quota_of(account: ProjectNode) -> int:
    quota: Quota = account.project.quota
    table = account.project.quota_by_type
    if table is not None:
        # Q4: checked per type where the project owns workloads; a parent's quota is the sum.
        return UNLIMITED if None in table.values() else sum(v for v in table.values() if v)
    if quota is None:
        return UNLIMITED
    if quota is LeftOut.SUM_OF_CHILDREN:
        return min(UNLIMITED, sum(child.quota for child in account.children))
    return quota


def _resolve(account: ProjectNode) -> None:
    for child in account.children:
        _resolve(child)
    account.quota = _quota_of(account)
    project = account.project
    below = sum(child.usage for child in account.children)
    account.usage = below if project.usage is None else project.usage
    build = UNLIMITED if project.build_quota is None else project.build_quota
    account.build_quota = min(build, account.quota)
    if project.weight is not None:
        account.weight = project.weight * WHOLE_GPU
    else:
        account.weight = WHOLE_GPU if account.is_unlimited else account.quota
    _split(account)


def _split(account: ProjectNode) -> None:
    """Add an account for each entry of a project's table of quotas (Q4)."""
    project = account.project
    table = project.quota_by_type
    if table is None or account.children:
        return
    for gpu_type in sorted({*table, ANY_OTHER}):
        name = f"{account.name} on {'other GPUs' if gpu_type == ANY_OTHER else gpu_type}"
        part = ProjectNode(Project(name=name, created=project.created), account)
        part.gpu_type = gpu_type
        part.priority = account.priority
        part.usage = account.usage
        quota = table.get(gpu_type, 0)
        part.quota = part.build_quota = UNLIMITED if quota is None else quota
        if project.weight is not None:
            part.weight = account.weight
        else:
            part.weight = WHOLE_GPU if part.is_unlimited else part.quota
        account.parts.append(part)
    account.children = account.parts


def tree_of(snapshot: Snapshot) -> ProjectTree:
    """Build the project tree of a snapshot."""
    return ProjectTree(snapshot.projects, {w.project for w in snapshot.workloads})
