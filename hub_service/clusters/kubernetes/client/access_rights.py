"""The service's RBAC rights in its cluster, each with its purpose.

`runai doctor` reports missing rights. A test keeps this list equal to the chart's roles
(tests/chart/test_rights.py).
"""

import asyncio
from collections.abc import Iterator
from typing import Literal, NamedTuple

from runai.hub_service.clusters.kubernetes.client.api import Api

RightScope = Literal["everywhere", "own", "jobs", "reservations"]
"""Scope: all namespaces, the service's, the notebooks', or that of the GPU reservation pods."""

RESERVATIONS = "runai-reservation"
ROLES: dict[RightScope, str] = {
    "everywhere": "ClusterRole runai-scheduler",
    "own": "Role runai-scheduler",
    "jobs": "ClusterRole runai-jobs",
    "reservations": "Role runai-reservations",
}
_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


class Right(NamedTuple):
    """One verb on one resource, its scope, and the feature that needs it."""

    where: RightScope
    group: str
    resource: str
    verb: str
    needed_to: str
    name: str = ""
    """Name of the only object the right covers; "" covers any."""

    @property
    def role(self) -> str:
        """Name the chart's role that grants the right."""
        return ROLES[self.where]

    def __str__(self) -> str:
        """Format the right as arguments of `kubectl auth can-i`."""
        group = f".{self.group}" if self.group else ""
        resource, _, subresource = self.resource.partition("/")
        return (
            f"{self.verb} {resource}{group}"
            + (f"/{self.name}" if self.name else "")
            + (f" --subresource={subresource}" if subresource else "")
        )


def _each_right() -> Iterator[Right]:
    """Yield each right; in the table, several resources or verbs share a line."""
    for where, group, resources, verbs, needed_to, *name in (
        ("everywhere", "", "pods", "get list watch", "see what runs and waits"),
        ("everywhere", "", "nodes namespaces", "list watch", "see where there are GPUs"),
        (
            "everywhere",
            "",
            "persistentvolumeclaims persistentvolumes",
            "list watch patch",
            "bind volumes where a pod is placed",
        ),
        ("everywhere", "storage.k8s.io", "storageclasses", "list watch", "see which volumes wait"),
        ("everywhere", "batch", "jobs", "list watch patch", "pause and resume jobs"),
        ("everywhere", "kubeflow.org", "pytorchjobs", "list watch patch", "pause PyTorchJobs"),
        (
            "everywhere",
            "apiextensions.k8s.io",
            "customresourcedefinitions",
            "list watch",
            "see whether there are PyTorchJobs",
            "pytorchjobs.kubeflow.org",
        ),
        ("everywhere", "", "pods/binding", "create", "start what was decided to start"),
        ("everywhere", "", "pods/eviction", "create", "give GPUs back to their owners"),
        ("everywhere", "", "pods/status", "patch", "say why a pod waits"),
        ("everywhere", "", "events", "create", "tell of what was decided"),
        (
            "everywhere",
            "authentication.k8s.io",
            "tokenreviews",
            "create",
            "know agents and workers by their tokens",
        ),
        (
            "everywhere",
            "jupyter-runai.dev",
            "projects",
            "list watch create patch delete",
            "keep projects",
        ),
        ("everywhere", "jupyter-runai.dev", "projects/status", "patch", "show projects' shares"),
        ("jobs", "batch", "jobs", "create delete", "submit and delete jobs"),
        ("jobs", "kubeflow.org", "pytorchjobs", "delete", "delete PyTorchJobs"),
        ("jobs", "", "pods", "delete", "end sessions and elements of arrays"),
        ("jobs", "", "pods/log", "get", "show what a job wrote"),
        ("jobs", "", "persistentvolumeclaims", "get", "give a job its owner's files"),
        ("jobs", "", "events", "list", "show a job's life"),
        ("own", "coordination.k8s.io", "leases", "create", "be the one that leads"),
        (
            "own",
            "coordination.k8s.io",
            "leases",
            "get update",
            "be the one that leads",
            "runai-scheduler",
        ),
        ("own", "", "pods", "patch", "have requests sent to the one that leads"),
        ("reservations", "", "pods", "create patch delete", "hold GPUs that several share"),
    ):
        for resource in resources.split():
            for verb in verbs.split():
                yield Right(where, group, resource, verb, needed_to, *name)  # type: ignore[arg-type]


RIGHTS = tuple(_each_right())


async def missing(api: Api, *, own: str, jobs: str) -> list[Right]:
    """Return the rights that the API client's account lacks.

    `own` and `jobs` are the namespaces of the service and of the notebooks.

    Raises:
        ApiError: the API server does not answer, or forbids the access review.
    """
    namespaces = {"everywhere": "", "own": own, "jobs": jobs, "reservations": RESERVATIONS}

    async def is_granted(right: Right) -> bool:
        resource, _, subresource = right.resource.partition("/")
        attributes = {
            "namespace": namespaces[right.where],
            "verb": right.verb,
            "group": right.group,
            "resource": resource,
            "subresource": subresource,
            "name": right.name,
        }
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        return bool((await api.create(_REVIEWS, body))["status"]["allowed"])

    answers = await asyncio.gather(*map(is_granted, RIGHTS))
    return [right for right, allowed in zip(RIGHTS, answers, strict=True) if not allowed]
