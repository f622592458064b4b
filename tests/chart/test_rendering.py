"""The chart rendered by Helm, without a cluster: goldens, lint, refusals.

`RUNAI_GOLDENS=write` writes the goldens anew; the difference is reviewed like any change.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from control_plane.chart import CHART, HelmRefused, helm, rendered
from runai.hub_service.agent.__main__ import AgentSettings
from runai.hub_service.model.admin_files import read_policy, read_projects
from runai.hub_service.server.settings import Config

pytestmark = pytest.mark.kubernetes

FOLDER = Path(__file__).parent
DEFAULT_VALUES = FOLDER / "values" / "default.yaml"
VALUES_FILES = sorted((FOLDER / "values").glob("*.yaml"))


def objects(*arguments: str) -> list[dict[str, Any]]:
    return [
        chart_object for chart_object in yaml.safe_load_all(rendered(*arguments)) if chart_object
    ]


def objects_of_kind(kind: str, *arguments: str) -> dict[str, dict[str, Any]]:
    return {o["metadata"]["name"]: o for o in objects(*arguments) if o["kind"] == kind}


@pytest.mark.parametrize("values", VALUES_FILES, ids=lambda path: path.stem)
def test_rendered_chart_equals_its_golden_file(values: Path):
    """A golden lists all object names first; objects equal to the defaults are in theirs alone."""
    golden = FOLDER / "goldens" / values.name
    default_objects = [] if values == DEFAULT_VALUES else objects("--values", str(DEFAULT_VALUES))
    chart_objects = objects("--values", str(values))
    golden_objects = [
        chart_object
        for chart_object in chart_objects
        if chart_object not in default_objects and not _is_long(chart_object)
    ]
    names = "".join(f"# {name}\n" for name in sorted(map(_name, chart_objects)))
    text = names + yaml.safe_dump_all(golden_objects, sort_keys=True, width=110)
    if os.environ.get("RUNAI_GOLDENS") == "write":
        golden.write_text(text)

    assert golden.read_text() == text


def _name(chart_object: dict[str, Any]) -> str:
    namespace = chart_object["metadata"].get("namespace")
    return f"{chart_object['kind']}/{chart_object['metadata']['name']}" + (
        f" in {namespace}" if namespace else ""
    )


def _is_long(chart_object: dict[str, Any]) -> bool:
    """Return True for an object with a file of its own in the chart: it needs no golden."""
    return chart_object["kind"] == "MutatingAdmissionPolicy" or "gpus.json" in chart_object.get(
        "data", {}
    )


def test_helm_lint_passes_for_all_values_files():
    values = [f"--values={file}" for file in VALUES_FILES]

    assert "1 chart(s) linted, 0 chart(s) failed" in helm("lint", "--strict", str(CHART), *values)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("agent.enabld=true", "at '/agent': additional properties 'enabld' not allowed"),
        ("replicas=two", "at '/replicas': got string, want integer"),
        ("replicas=2", "at '/ledger/url': '' does not match pattern '^postgresql://'"),
        ("ledger.url=mysql://host/db", "at '/ledger/url': 'mysql://host/db' does not match"),
        ("ledger.fromSecret=true", "at '/existingSecret': minLength: got 0, want 1"),
        ("metrics.serviceMonitor.enabled=true", "at '/metrics/serviceMonitor/tokenSecret'"),
        ("projects.Vision.quota=1", "'Vision' does not match pattern"),
        ("jupyterhub.baseUrl=/hub", "at '/jupyterhub/baseUrl': '/hub' does not match"),
        ("nodePool=a", "at '/nodePool': 'a' does not match pattern"),
        ("jobs.limits.cpu=two", "at '/jobs/limits/cpu': 'two' does not match pattern"),
        ("jobs.limits.cpu=-1", "at '/jobs/limits/cpu': minimum: got -1, want 0"),
        ("jobs.limits.memory=16GB", "at '/jobs/limits/memory': '16GB' does not match pattern"),
        ("jobs.limits.gpu=1", "at '/jobs/limits': additional properties 'gpu' not allowed"),
        ("logLevel=LOUD", "at '/logLevel': value must be one of 'DEBUG'"),
    ],
)
def test_chart_schema_refuses_invalid_values_by_name(setting: str, message: str):
    with pytest.raises(HelmRefused) as refused:
        rendered("--set", setting)

    assert message in str(refused.value)


def test_chart_with_two_replicas_has_rolling_updates_and_no_volume_claim():
    ledger_setting = "ledger.url=postgresql://runai:secret@db/runai"

    chart_objects = objects("--set", f"replicas=2,{ledger_setting}")

    strategies = [o["spec"]["strategy"]["type"] for o in chart_objects if o["kind"] == "Deployment"]
    assert strategies == ["RollingUpdate"]
    assert not [o for o in chart_objects if o["kind"] == "PersistentVolumeClaim"]
    # The URL contains a password, and is in the Secret alone, in base64.
    assert "runai:secret@" not in json.dumps(chart_objects)


def test_chart_schema_and_values_name_the_same_settings():
    schema = json.loads((CHART / "values.schema.json").read_text())

    assert _value_paths(yaml.safe_load((CHART / "values.yaml").read_text())) == _schema_paths(
        schema, schema
    )


def _value_paths(values: Any, at: str = "") -> set[str]:
    if not isinstance(values, dict) or at.rpartition("/")[2] in _FREE_FORM:
        return {at}
    return {name for key, value in values.items() for name in _value_paths(value, f"{at}/{key}")}


_FREE_FORM = {"projects", "nodeSelector", "labels", "affinity", "requests", "limits"}


def _schema_paths(schema: dict[str, Any], root: dict[str, Any], at: str = "") -> set[str]:
    if reference := schema.get("$ref"):
        return _schema_paths(root["$defs"][reference.rpartition("/")[2]], root, at)
    properties = schema.get("properties", {})
    if properties:
        assert schema["additionalProperties"] is False, at
    if not properties or at.rpartition("/")[2] in _FREE_FORM:
        return {at}
    return {
        name
        for key, inner in properties.items()
        if key != "global"  # Helm's own
        for name in _schema_paths(inner, root, f"{at}/{key}")
    }


def test_every_chart_value_has_a_comment():
    """Each setting's line, or the comment over its group, describes it."""
    lines = (CHART / "values.yaml").read_text().splitlines()
    groups = [i for i, line in enumerate(lines) if re.match(r"[a-zA-Z]+:", line)]
    undocumented = [
        lines[i]
        for i in groups
        if "#" not in lines[i] and not any("#" in line for line in _paragraph(lines, i))
    ]

    assert undocumented == []


def _paragraph(lines: list[str], at: int) -> list[str]:
    first = at
    while first and lines[first - 1]:
        first -= 1
    last = next((i for i in range(at, len(lines)) if not lines[i]), len(lines))
    return lines[first:last]


@pytest.mark.parametrize("kind", ["Deployment", "DaemonSet"])
def test_chart_containers_have_restricted_security_contexts(kind: str):
    for workload in objects_of_kind(kind).values():
        pod = workload["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        security_context = container["securityContext"]

        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert security_context["readOnlyRootFilesystem"] is True
        assert security_context["allowPrivilegeEscalation"] is False
        assert security_context["capabilities"] == {"drop": ["ALL"]}
        assert pod["enableServiceLinks"] is False  # a link to the Service would set RUNAI_PORT
        assert (kind == "DaemonSet") == ("runAsNonRoot" not in pod["securityContext"])
        assert container["resources"]["limits"]["memory"]


def _environment(kind: str) -> dict[str, str]:
    """Return the environment of a pod's program; values from elsewhere become "word"."""
    (workload,) = objects_of_kind(kind, "--values", str(FOLDER / "values/postgresql.yaml")).values()
    (container,) = workload["spec"]["template"]["spec"]["containers"]
    return {variable["name"]: variable.get("value", "word") for variable in container["env"]}


def test_service_settings_parse_the_deployment_environment():
    database = {"RUNAI_LEDGER": "postgresql://host/db", "RUNAI_HUB_TOKEN": "another"}

    config = Config.from_environment(_environment("Deployment") | database)

    assert config.kube_config is not None
    assert config.kube_config.namespace == "jhub"
    assert config.kube_config.jobs_limits == {"cpu": "2.5", "memory": "16Gi"}
    assert config.kube_config.jobs_token
    assert config.api_url == "http://runai.runai/jupyter/services/runai/"
    assert config.host == "0.0.0.0"
    assert config.port == 8000
    assert config.prefix == "/jupyter/services/runai/"
    assert config.hub is not None
    assert config.hub.api_url == "http://hub.jhub:8081/jupyter/hub/api"


def test_agent_settings_parse_the_daemonset_environment():
    settings = AgentSettings.parse(_environment("DaemonSet"))

    assert settings.url == "http://runai.runai/jupyter/services/runai/"


def test_projects_and_policy_files_rendered_by_the_chart_are_parsed(tmp_path: Path):
    values = ("--values", str(FOLDER / "values/postgresql.yaml"))
    files = objects_of_kind("ConfigMap", *values)["runai"]["data"]
    for name, text in files.items():
        (tmp_path / name).write_text(text)

    lab, vision = read_projects(tmp_path / "projects.yaml")

    assert lab.name == vision.parent == "lab"
    assert (vision.quota, vision.build_quota) == (2500, 1500)  # in thousandths of a GPU
    assert read_policy(tmp_path / "policy.yaml").history_weight == 2


def test_environment_variables_of_chart_pods_are_in_the_reference():
    reference = (CHART.parent / "docs/reference.md").read_text()
    names = {*_environment("Deployment"), *_environment("DaemonSet")}

    assert [n for n in names if n.startswith("RUNAI") and f"`{n}`" not in reference] == []
