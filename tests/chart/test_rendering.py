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

HERE = Path(__file__).parent
DEFAULT = HERE / "values" / "default.yaml"
VALUES = sorted((HERE / "values").glob("*.yaml"))


def objects(*arguments: str) -> list[dict[str, Any]]:
    return [found for found in yaml.safe_load_all(rendered(*arguments)) if found]


def of_kind(kind: str, *arguments: str) -> dict[str, dict[str, Any]]:
    return {o["metadata"]["name"]: o for o in objects(*arguments) if o["kind"] == kind}


@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)
def test_it_renders_as_it_did(values: Path):
    """A golden lists all object names first; objects equal to the defaults are in theirs alone."""
    golden = HERE / "goldens" / values.name
    known = [] if values == DEFAULT else objects("--values", str(DEFAULT))
    made = objects("--values", str(values))
    shown = [found for found in made if found not in known and not _is_long(found)]
    names = "".join(f"# {name}\n" for name in sorted(map(_name, made)))
    text = names + yaml.safe_dump_all(shown, sort_keys=True, width=110)
    if os.environ.get("RUNAI_GOLDENS") == "write":
        golden.write_text(text)

    assert golden.read_text() == text


def _name(found: dict[str, Any]) -> str:
    where = found["metadata"].get("namespace")
    return f"{found['kind']}/{found['metadata']['name']}" + (f" in {where}" if where else "")


def _is_long(found: dict[str, Any]) -> bool:
    """Return True for an object with a file of its own in the chart: it needs no golden."""
    return found["kind"] == "MutatingAdmissionPolicy" or "gpus.json" in found.get("data", {})


def test_lint_has_nothing_to_say():
    values = [f"--values={file}" for file in VALUES]

    assert "1 chart(s) linted, 0 chart(s) failed" in helm("lint", "--strict", str(CHART), *values)


@pytest.mark.parametrize(
    ("setting", "sentence"),
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
def test_schema_refuses_invalid_values_by_name(setting: str, sentence: str):
    with pytest.raises(HelmRefused) as refused:
        rendered("--set", setting)

    assert sentence in str(refused.value)


def test_two_replicas_over_a_database_are_upgraded_one_after_the_other():
    address = "ledger.url=postgresql://runai:secret@db/runai"

    found = objects("--set", f"replicas=2,{address}")

    strategies = [o["spec"]["strategy"]["type"] for o in found if o["kind"] == "Deployment"]
    assert strategies == ["RollingUpdate"]
    assert not [o for o in found if o["kind"] == "PersistentVolumeClaim"]
    # The URL contains a password, and is in the Secret alone, in base64.
    assert "runai:secret@" not in json.dumps(found)


def test_schema_and_values_name_the_same_settings():
    schema = json.loads((CHART / "values.schema.json").read_text())

    assert _named(yaml.safe_load((CHART / "values.yaml").read_text())) == _allowed(schema, schema)


def _named(values: Any, at: str = "") -> set[str]:
    if not isinstance(values, dict) or at.rpartition("/")[2] in _FREE:
        return {at}
    return {name for key, value in values.items() for name in _named(value, f"{at}/{key}")}


_FREE = {"projects", "nodeSelector", "labels", "affinity", "requests", "limits"}


def _allowed(schema: dict[str, Any], root: dict[str, Any], at: str = "") -> set[str]:
    if reference := schema.get("$ref"):
        return _allowed(root["$defs"][reference.rpartition("/")[2]], root, at)
    properties = schema.get("properties", {})
    if properties:
        assert schema["additionalProperties"] is False, at
    if not properties or at.rpartition("/")[2] in _FREE:
        return {at}
    return {
        name
        for key, inner in properties.items()
        if key != "global"  # Helm's own
        for name in _allowed(inner, root, f"{at}/{key}")
    }


def test_every_value_has_its_words():
    """Each setting's line, or the comment over its group, describes it."""
    lines = (CHART / "values.yaml").read_text().splitlines()
    groups = [i for i, line in enumerate(lines) if re.match(r"[a-zA-Z]+:", line)]
    silent = [
        lines[i]
        for i in groups
        if "#" not in lines[i] and not any("#" in line for line in _paragraph(lines, i))
    ]

    assert silent == []


def _paragraph(lines: list[str], at: int) -> list[str]:
    first = at
    while first and lines[first - 1]:
        first -= 1
    last = next((i for i in range(at, len(lines)) if not lines[i]), len(lines))
    return lines[first:last]


@pytest.mark.parametrize("kind", ["Deployment", "DaemonSet"])
def test_its_containers_can_do_nothing_but_their_work(kind: str):
    for found in of_kind(kind).values():
        pod = found["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        security = container["securityContext"]

        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert security["readOnlyRootFilesystem"] is True
        assert security["allowPrivilegeEscalation"] is False
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert pod["enableServiceLinks"] is False  # RUNAI_PORT would be one
        assert (kind == "DaemonSet") == ("runAsNonRoot" not in pod["securityContext"])
        assert container["resources"]["limits"]["memory"]


def _environment(kind: str) -> dict[str, str]:
    """Return the environment of a pod's program; values from elsewhere become "word"."""
    (found,) = of_kind(kind, "--values", str(HERE / "values/postgresql.yaml")).values()
    (container,) = found["spec"]["template"]["spec"]["containers"]
    return {each["name"]: each.get("value", "word") for each in container["env"]}


def test_the_service_understands_what_it_is_told():
    database = {"RUNAI_LEDGER": "postgresql://host/db", "RUNAI_HUB_TOKEN": "another"}

    config = Config.from_environment(_environment("Deployment") | database)

    assert config.kube_config is not None
    assert config.kube_config.namespace == "jhub"
    assert config.kube_config.jobs_limits == {"cpu": "2.5", "memory": "16Gi"}
    assert config.kube_config.jobs_token
    assert config.api_url == "http://runai.runai/jupyter/services/runai/"
    assert (config.host, config.port, config.prefix) == (
        "0.0.0.0",
        8000,
        "/jupyter/services/runai/",
    )
    assert config.hub is not None
    assert config.hub.api_url == "http://hub.jhub:8081/jupyter/hub/api"


def test_the_agent_understands_what_it_is_told():
    settings = AgentSettings.parse(_environment("DaemonSet"))

    assert settings.url == "http://runai.runai/jupyter/services/runai/"


def test_projects_and_policy_are_read_as_on_one_machine(tmp_path: Path):
    files = of_kind("ConfigMap", "--values", str(HERE / "values/postgresql.yaml"))["runai"]["data"]
    for name, text in files.items():
        (tmp_path / name).write_text(text)

    lab, vision = read_projects(tmp_path / "projects.yaml")

    assert (lab.name, vision.parent, vision.quota, vision.build_quota) == ("lab", "lab", 2500, 1500)
    assert read_policy(tmp_path / "policy.yaml").history_weight == 2


def test_variables_of_its_pods_stand_in_the_reference():
    known = (CHART.parent / "docs/reference.md").read_text()
    names = {*_environment("Deployment"), *_environment("DaemonSet")}

    assert [n for n in names if n.startswith("RUNAI") and f"`{n}`" not in known] == []
