"""One control plane for all tests of this folder, and a lab for each of them.

plane     the control plane, with our custom resource and the chart's service account
lab       nodes, projects and a namespace that are gone after the test
rights    kubeconfig of that service account: what the scheduler runs with
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from control_plane.objects import Namespace, add_node, add_project, job
from control_plane.plane import ApiRefused, ControlPlane
from control_plane.programs import why_no_kubernetes
from waiting import eventually

HELM = Path(__file__).parents[3] / "helm"
PROJECTS = "/apis/jupyter-runai.dev/v1alpha1/projects"
NUMBERS = itertools.count(1)


class Lab:
    """A namespace, with nodes and projects, for one test."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        self.number = next(NUMBERS)
        self.namespace = self.another_namespace()
        self._namespaces = [self.namespace]
        self._nodes: list[str] = []
        self._projects: list[str] = []

    def another_namespace(self, project: str = "") -> Namespace:
        name = f"lab-{self.number}" + (f"-{project}" if project else "")
        made = Namespace(self.plane, name, project)
        if project:
            self._namespaces.append(made)
        return made

    def node(self, name: str, gpus: int = 0, **how: Any) -> None:
        self._nodes.append(name)
        add_node(self.plane, name, gpus, **how)

    def project(self, name: str, **spec: Any) -> None:
        self._projects.append(name)
        add_project(self.plane, name, **spec)

    def remove(self) -> None:
        """Leave nothing behind that the next test's scheduler would see."""
        for namespace in self._namespaces:
            path = f"/apis/batch/v1/namespaces/{namespace.name}/jobs"
            self.plane.request("DELETE", path, {"propagationPolicy": "Background"})
            pods = f"/api/v1/namespaces/{namespace.name}/pods"

            def empty(namespace: Namespace = namespace, pods: str = pods) -> bool:
                self.plane.request("DELETE", pods, {"gracePeriodSeconds": 0})
                return not namespace.pods()

            eventually(empty, what=f"{namespace.name} is empty")
            self.plane.request("DELETE", f"/api/v1/namespaces/{namespace.name}")
        for name in self._nodes:
            self._gone(f"/api/v1/nodes/{name}")
        for name in self._projects:
            self._gone(f"{PROJECTS}/{name}")

    def _gone(self, path: str) -> None:
        try:
            self.plane.request("DELETE", path)
        except ApiRefused as refused:
            if refused.status != 404:
                raise


@pytest.fixture(scope="session")
def plane() -> Iterator[ControlPlane]:
    if missing := why_no_kubernetes():
        pytest.skip(f"kubernetes: {missing}")
    with ControlPlane() as started:
        for file in sorted([*HELM.glob("crds/*.yaml"), *HELM.glob("templates/*/*.yaml")]):
            started.kubectl("apply", "-f", str(file))

        def served() -> bool:
            try:
                started.request("GET", PROJECTS)
            except ApiRefused:  # 404, then 429 for a moment
                return False
            return True

        eventually(served, what="projects are served")

        def admits() -> bool:
            plain = job("plain")
            del plain["spec"]["podFailurePolicy"]
            path = "/apis/batch/v1/namespaces/default/jobs?dryRun=All"
            return "podFailurePolicy" in started.request("POST", path, plain)["spec"]

        eventually(admits, what="the admission policy is in force")
        yield started


@pytest.fixture
def lab(plane: ControlPlane) -> Iterator[Lab]:
    made = Lab(plane)
    yield made
    made.remove()


@pytest.fixture
def rights(plane: ControlPlane) -> Path:
    return plane.service_account("runai", "runai-scheduler")
