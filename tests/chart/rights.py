"""The rights of the rendered chart, whole and with one verb left out, on a real API server.

    rules = rights_of("lab-1")                  every Role and ClusterRole of the chart
    full_kubeconfig(plane, "lab-1")             kubeconfig of the chart's service account
    kubeconfig_without(plane, "lab-1", right)   of an account that lacks exactly that
    grant(plane, kubeconfig, right)             give an account what it lacks, in all namespaces

For test_rights, and for tests of a service that lacks a right.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from control_plane.calls import ApiRefused
from control_plane.chart import rendered
from control_plane.plane import ControlPlane
from waiting import eventually

NUMBERS = itertools.count(1)
KINDS = {"Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding"}
GROUP = "/apis/rbac.authorization.k8s.io/v1"


class Right(NamedTuple):
    """One verb on one resource, with the role that grants it."""

    role: str
    resource: str
    verb: str

    def __str__(self) -> str:
        """Return it as part of a test's name."""
        return f"{self.verb} {self.resource} ({self.role})"


def rights_of(notebooks: str) -> set[Right]:
    """Return all rights that the chart grants to any account."""
    return {
        right
        for document in _documents(notebooks)
        for rule in document.get("rules", ())
        for right in _rights(document, rule)
    }


def full_kubeconfig(plane: ControlPlane, notebooks: str) -> Path:
    """Return a kubeconfig of the chart's service account, with a namespace for notebooks."""
    return _account(plane, notebooks, None)


def kubeconfig_without(plane: ControlPlane, notebooks: str, lacking: Right) -> Path:
    """Return a kubeconfig of an account that has all of the chart's rights but one."""
    return _account(plane, notebooks, lacking)


def grant(plane: ControlPlane, kubeconfig: Path, right: Right) -> None:
    """Grant the missing right to an account of `kubeconfig_without`, in all namespaces."""
    account = kubeconfig.stem.removeprefix("runai-")
    name = {"metadata": {"name": f"{account}-later"}}
    (rule,) = (
        rule
        for document in _documents("default")
        for rule in document.get("rules", ())
        if right in _rights(document, rule)
    )
    granted_rule = rule | {"resources": [right.resource], "verbs": [right.verb]}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", **name["metadata"]}
    subject = {"kind": "ServiceAccount", "name": account, "namespace": "runai"}
    plane.request("POST", f"{GROUP}/clusterroles", name | {"rules": [granted_rule]})
    bound = name | {"roleRef": role, "subjects": [subject]}
    plane.request("POST", f"{GROUP}/clusterrolebindings", bound)


def _account(plane: ControlPlane, notebooks: str, lacking: Right | None) -> Path:
    account = f"rights-{next(NUMBERS)}"
    plane.request(
        "POST", "/api/v1/namespaces/runai/serviceaccounts", {"metadata": {"name": account}}
    )
    for document in _documents(notebooks):
        copied = copy.deepcopy(document)
        original_name = copied["metadata"]["name"]
        copied["metadata"]["name"] = f"{account}-{original_name}"
        for rule in copied.get("rules", ()):
            removed = {right.verb: right for right in _rights(document, rule) if right == lacking}
            if removed:
                _take_out(copied, rule, removed.popitem()[1])
        if "roleRef" in copied:
            copied["roleRef"]["name"] = f"{account}-{copied['roleRef']['name']}"
            copied["subjects"] = [{"kind": "ServiceAccount", "name": account, "namespace": "runai"}]
        plane.request("POST", _path(copied), copied)
    user = f"system:serviceaccount:runai:{account}"
    for canary in _canaries(notebooks, lacking):
        eventually(partial(_is_allowed, plane, user, canary), what=f"{account} has rights")
    return plane.service_account("runai", account)


def _take_out(role: dict[str, Any], rule: dict[str, Any], right: Right) -> None:
    """Remove one verb on one resource from a rule, which may cover several."""
    role["rules"].remove(rule)
    other_resources = [each for each in rule["resources"] if each != right.resource]
    verbs = [verb for verb in rule["verbs"] if verb != right.verb]
    if other_resources:
        role["rules"].append(rule | {"resources": other_resources})
    if verbs:
        role["rules"].append(rule | {"resources": [right.resource], "verbs": verbs})


@cache
def _documents(notebooks: str) -> list[dict[str, Any]]:
    options = ("--set", f"jupyterhub.namespace={notebooks},jobs.exec=true")
    found = yaml.safe_load_all(rendered(*options))
    return [each for each in found if each and each["kind"] in KINDS]


def _rights(role: dict[str, Any], rule: dict[str, Any]) -> Iterator[Right]:
    # Two rules of one role about the same resource differ in their `resourceNames`.
    for resource, verb in itertools.product(rule["resources"], rule["verbs"]):
        yield Right(f"{role['kind']} {role['metadata']['name']}", resource, verb)


def _path(document: dict[str, Any]) -> str:
    plural = f"{document['kind'].lower()}s"
    namespace = document["metadata"].get("namespace")
    return f"{GROUP}/namespaces/{namespace}/{plural}" if namespace else f"{GROUP}/{plural}"


def _canaries(notebooks: str, lacking: Right | None) -> Iterator[dict[str, Any]]:
    """Yield one allowed request of each binding, which proves that the binding is in force."""
    documents = _documents(notebooks)
    roles = {(d["kind"], d["metadata"]["name"]): d for d in documents if "rules" in d}
    for binding in documents:
        if "roleRef" not in binding:
            continue
        role = roles[binding["roleRef"]["kind"], binding["roleRef"]["name"]]
        for rule in role["rules"]:
            allowed = next((r for r in _rights(role, rule) if r != lacking), None)
            if allowed is None:
                continue
            resource, _, part = allowed.resource.partition("/")
            yield {
                "namespace": binding["metadata"].get("namespace", ""),
                "verb": allowed.verb,
                "group": rule["apiGroups"][0],
                "resource": resource,
                "subresource": part,
                "name": next(iter(rule.get("resourceNames", ())), ""),
            }


def _is_allowed(plane: ControlPlane, user: str, attributes: dict[str, Any]) -> bool:
    review = {"spec": {"user": user, "resourceAttributes": attributes}}
    try:
        answer = plane.request("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
    except ApiRefused:
        return False
    return bool(answer["status"]["allowed"])
