"""Settings of users and processes: the environment, projects.yaml, the saved connection."""

from __future__ import annotations

import json
import stat
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from runai.hub_service.agent.devices.simulated import SimulatedDevices
from runai.hub_service.api.middleware.request_limits import Allowance
from runai.hub_service.client.connection import (
    Connection,
    config_path,
    find_connection,
    read_config,
    write_config,
)
from runai.hub_service.clusters.states.retention import RetentionPolicy
from runai.hub_service.model.admin_files import read_projects
from runai.hub_service.model.device import NodeCapacity
from runai.hub_service.model.records import ElasticRules, ProjectSpec
from runai.hub_service.scheduler.model.quantity import MilliGpu
from runai.hub_service.server.local_service import capacity_of
from runai.hub_service.server.settings import Config
from runai.hub_service.wire.errors import InvalidRequest, Unavailable

# -- the environment of the service --------------------------------------------------------------

MINIMAL_ENVIRONMENT = {"RUNAI_DATA_DIR": "/data", "RUNAI_HUB_TOKEN": "secret-of-the-hub"}
HUB = {
    "JUPYTERHUB_API_URL": "http://127.0.0.1:8081/hub/api",
    "JUPYTERHUB_API_TOKEN": "secret-of-the-service",
    "JUPYTERHUB_SERVICE_NAME": "runai",
    "JUPYTERHUB_SERVICE_PREFIX": "/jupyter/services/runai/",
    "JUPYTERHUB_SERVICE_URL": "http://127.0.0.1:9001",
    "JUPYTERHUB_BASE_URL": "/jupyter/",
    "JUPYTERHUB_CLIENT_ID": "service-runai",
}


def test_minimal_environment_gives_default_settings():
    config = Config.from_environment(MINIMAL_ENVIRONMENT)

    assert (config.host, config.port, config.prefix) == ("127.0.0.1", 0, "/services/runai/")
    assert (config.gpus, config.simulate, config.projects_file, config.hub) == (None,) * 4


def test_hub_environment_sets_port_prefix_and_oauth_scopes():
    config = Config.from_environment({**MINIMAL_ENVIRONMENT, **HUB})

    assert (config.port, config.prefix) == (9001, "/jupyter/services/runai/")
    assert config.api_url == "http://127.0.0.1:9001/jupyter/services/runai/"
    assert config.hub is not None
    assert config.hub.access_scopes == ("access:services!service=runai",)
    assert config.hub.callback_url == "/jupyter/services/runai/oauth_callback"


REAL_GPU = replace(SimulatedDevices(1, node="lab").devices()[0], simulated=False)


@pytest.mark.parametrize(
    ("environ", "cpus", "devices", "expected"),
    [
        pytest.param({}, 16, [REAL_GPU], NodeCapacity(14_000, 57_344), id="seven eighths"),
        pytest.param({}, 2, [], NodeCapacity(2000, 57_344), id="few CPUs and no GPU"),
        pytest.param({}, 15, [REAL_GPU], NodeCapacity(14_000, 57_344), id="rounded up"),
        pytest.param({}, 2, SimulatedDevices(3, node="lab").devices(), NodeCapacity(24_000),
                     id="8 CPUs for each simulated GPU"),
        pytest.param({"RUNAI_CPUS": "4", "RUNAI_MEMORY": "56G"}, 16, [REAL_GPU],
                     NodeCapacity(4000, 57_344), id="configured"),
        pytest.param({"RUNAI_CPUS": "0", "RUNAI_MEMORY": "500M"}, 2,
                     SimulatedDevices(3, node="lab").devices(), NodeCapacity(0, 500),
                     id="configured beside simulated GPUs"),
    ],
)  # fmt: skip
def test_cpu_and_memory_capacity_is_seven_eighths_of_machine_or_as_configured(
    monkeypatch, environ, cpus, devices, expected
):
    monkeypatch.setattr("os.sched_getaffinity", lambda _process: set(range(cpus)))
    machine_mib = 65_536  # of which 57,344 are seven eighths
    memory = psutil.virtual_memory()._replace(total=machine_mib * 2**20)
    monkeypatch.setattr("psutil.virtual_memory", lambda: memory)

    assert capacity_of(Config.from_environment(MINIMAL_ENVIRONMENT | environ), devices) == expected


def test_agent_token_equal_to_the_hub_token_is_refused():
    config = Config.from_environment(MINIMAL_ENVIRONMENT | {"RUNAI_AGENT_TOKEN": "of-the-node"})

    assert (config.agent_token, "of-the-node" in repr(config)) == ("of-the-node", False)
    with pytest.raises(InvalidRequest, match="RUNAI_AGENT_TOKEN is the hub's token") as refused:
        Config.from_environment(
            MINIMAL_ENVIRONMENT | {"RUNAI_AGENT_TOKEN": MINIMAL_ENVIRONMENT["RUNAI_HUB_TOKEN"]}
        )
    assert MINIMAL_ENVIRONMENT["RUNAI_HUB_TOKEN"] not in str(refused.value)


def test_environment_sets_elastic_growth_rules():
    config = Config.from_environment(
        MINIMAL_ENVIRONMENT
        | {
            "RUNAI_ELASTIC_GROW_EVERY": "5",
            "RUNAI_ELASTIC_RESIZE_COST": "120",
            "RUNAI_ELASTIC_PAYS_FROM": "off",
        }
    )

    assert config.elastic == ElasticRules(grow_every_s=5, resize_cost_s=120, pays_from=None)
    assert Config.from_environment(MINIMAL_ENVIRONMENT).elastic == ElasticRules()


def test_environment_sets_request_and_job_limits():
    config = Config.from_environment(
        MINIMAL_ENVIRONMENT
        | {
            "RUNAI_USER_CALLS": "5",
            "RUNAI_USER_OPEN": "0",
            "RUNAI_SUBMISSIONS_AT_ONCE": "7",
            "RUNAI_USER_JOBS": "50",
        }
    )

    assert config.allowance == Allowance(
        calls_per_s=5, open_at_once=0, submissions_at_once=7, unfinished_jobs=50
    )
    assert Config.from_environment(MINIMAL_ENVIRONMENT).allowance == Allowance(30, 200, 256, 20_000)


ON_KUBERNETES = MINIMAL_ENVIRONMENT | {"RUNAI_CLUSTER": "kubernetes"}


def test_environment_sets_limits_and_token_of_kubernetes_jobs():
    bounds = {"RUNAI_JOBS_CPU_LIMIT": "2.5", "RUNAI_JOBS_MEMORY_LIMIT": "16Gi"}
    config = Config.from_environment(ON_KUBERNETES | bounds | {"RUNAI_JOBS_API_TOKEN": "1"})
    plain = Config.from_environment(ON_KUBERNETES | dict.fromkeys(bounds, ""))

    assert config.kube_config is not None
    assert plain.kube_config is not None
    assert config.kube_config.jobs_limits == {"cpu": "2.5", "memory": "16Gi"}
    assert config.kube_config.jobs_token
    assert (plain.kube_config.jobs_limits, plain.kube_config.jobs_token) == ({}, False)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RUNAI_JOBS_CPU_LIMIT", "many"),
        *(("RUNAI_JOBS_MEMORY_LIMIT", value) for value in ("-1", "1GB", "1e3", "٣", "16Gi\n")),
    ],
)
def test_malformed_kubernetes_job_limit_is_refused(name, value):
    with pytest.raises(InvalidRequest, match=f"{name} is "):
        Config.from_environment(ON_KUBERNETES | {name: value})


@pytest.mark.parametrize(
    ("variables", "retention"),
    [
        pytest.param({}, RetentionPolicy(max_age_s=30 * 86400, max_finished=10_000), id="default"),
        pytest.param({"RUNAI_JOBS_TTL": "86400"}, RetentionPolicy(max_age_s=86400), id="a day"),
        pytest.param(
            {"RUNAI_JOBS_TTL": "0"},
            RetentionPolicy(max_age_s=600),
            id="at least ten minutes",
        ),
        pytest.param({"RUNAI_JOBS_KEPT": "100"}, RetentionPolicy(max_finished=100), id="maximum"),
    ],
)
def test_environment_sets_retention_of_finished_workloads(variables, retention):
    assert Config.from_environment(MINIMAL_ENVIRONMENT | variables).retention == retention


@pytest.mark.parametrize(
    ("variables", "files"),
    [
        pytest.param({}, 200_000, id="default: 100 files after each of 2,000 epochs"),
        pytest.param({"RUNAI_JOB_FILES": "0"}, 0, id="no limit"),
        pytest.param({"RUNAI_JOB_FILES": "5000000"}, 5_000_000, id="configured limit"),
    ],
)
def test_environment_sets_the_file_limit_of_a_job(variables, files):
    assert Config.from_environment(MINIMAL_ENVIRONMENT | variables).job_files == files


def test_ledger_address_may_be_postgresql():
    config = Config.from_environment(
        {**MINIMAL_ENVIRONMENT, "RUNAI_LEDGER": "postgresql://runai@db/ledger"}
    )

    assert config.ledger == "postgresql+psycopg://runai@db/ledger"
    assert Config.from_environment(MINIMAL_ENVIRONMENT).ledger == ""


def test_invalid_ledger_address_is_refused_without_its_password():
    with pytest.raises(InvalidRequest, match="RUNAI_LEDGER is no address") as refused:
        Config.from_environment(
            {**MINIMAL_ENVIRONMENT, "RUNAI_LEDGER": "mysql://runai:secret@db/ledger"}
        )

    assert "secret" not in f"{refused.value} {refused.value.hint}"


def test_configuration_repr_has_no_secret():
    ledger = {"RUNAI_LEDGER": "postgresql://runai:secret@db/ledger"}
    config_text = repr(Config.from_environment({**MINIMAL_ENVIRONMENT, **HUB, **ledger}))

    assert "secret" not in config_text


@pytest.mark.parametrize("variable", ["RUNAI_DATA_DIR", "RUNAI_HUB_TOKEN"])
def test_missing_setting_error_names_the_variable(variable):
    with pytest.raises(InvalidRequest, match=f"{variable} is not set"):
        Config.from_environment({**MINIMAL_ENVIRONMENT, **HUB, variable: ""})


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("RUNAI_GPUS", "-1"),
        ("RUNAI_GPUS", "some"),
        ("RUNAI_SIMULATE", "1.5"),
        ("RUNAI_SIMULATE", "4000"),
        ("RUNAI_SYSTEM_USERS", "yes"),
        ("RUNAI_GPU_SHARING", "both"),
        ("RUNAI_LOG_LEVEL", "loud"),
        ("RUNAI_USER_CALLS", "1000001"),
        ("RUNAI_SUBMISSIONS_AT_ONCE", "1000001"),
        ("RUNAI_USER_OPEN", "1000001"),
        ("RUNAI_USER_JOBS", "1000001"),
        ("RUNAI_ELASTIC_GROW_EVERY", "-1"),
        ("RUNAI_ELASTIC_RESIZE_COST", "soon"),
        ("RUNAI_ELASTIC_PAYS_FROM", "1.5"),
        ("RUNAI_ELASTIC_PAYS_FROM", "nan"),
        ("RUNAI_JOBS_TTL", "long"),
        ("RUNAI_JOBS_KEPT", "long"),
        ("RUNAI_JOB_FILES", "long"),
        ("JUPYTERHUB_SERVICE_URL", "http://h:port"),
    ],
)
def test_invalid_setting_error_names_variable_and_value(variable, value):
    with pytest.raises(InvalidRequest, match=f"{variable} is '{value}'"):
        Config.from_environment({**MINIMAL_ENVIRONMENT, **HUB, variable: value})


# -- projects.yaml -------------------------------------------------------------------------------

PROJECTS_YAML = """
# The lab's projects.
projects:
  team-b:               # a child may come before its parent
    parent: lab
    build_quota: 0.5
    quota: 1.5
  lab:
    quota: unlimited
    limit: 8
    weight: 2
    members: [ana, "7"]
    groups: [lab-people]
    admins:
      - vic
    node_types_train: [a100]
  idle:
"""


def test_projects_file_is_read_with_parents_first(tmp_path):
    path = tmp_path / "projects.yaml"
    path.write_text(PROJECTS_YAML)

    assert read_projects(path) == [
        ProjectSpec(
            "lab",
            quota=None,
            limit=MilliGpu(8000),
            weight=2,
            members=("ana", "7"),
            groups=("lab-people",),
            admins=("vic",),
            node_types_train=("a100",),
        ),
        ProjectSpec("idle"),
        ProjectSpec("team-b", parent="lab", quota=MilliGpu(1500), build_quota=MilliGpu(500)),
    ]


def test_empty_projects_file_has_no_projects(tmp_path):
    path = tmp_path / "projects.yaml"
    path.write_text("# nothing yet\n")

    assert read_projects(path) == []


def test_projects_file_may_begin_with_a_byte_order_mark(tmp_path):
    path = tmp_path / "projects.yaml"
    path.write_text("\ufeffprojects:\n  idle:\n", encoding="utf-8")

    assert read_projects(path) == [ProjectSpec("idle")]


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("project:\n  vision:\n", 1, "no section 'project'"),
        ("projects:\n  Vision:\n    quota: 1", 2, "'Vision' is not a valid project name"),
        ("projects:\n  vision:\n    quota: 1\n  vision:\n", 4, "'vision' is there twice"),
        ("projects:\n  a:\nprojects:\n  b:\n", 3, "section 'projects' is there twice"),
        ("projects:\n  vision:\n    quota: 1\n    quota: 2", 4, "field 'quota' is there twice"),
        (
            "projects:\n  vision:\n    idle_job: {stop_s: 60, stop_s: 90}",
            3,
            "idle_job: 'stop_s' is there twice",
        ),
        ("projects:\n  vision:\n    qota: 1", 3, "a field 'qota'"),
        (
            "projects:\n  vision:\n    quota: {h100: -1}",
            3,
            "quota is -1: use a number from 0 upwards",
        ),
        ("projects:\n  vision:\n    quota: {h100: }", 3, "the quota of h100 has no value"),
        ("projects:\n  vision:\n    quota: {}", 3, "it must not be empty"),
        ("projects:\n  vision:\n    quota: -1", 3, "quota is -1: use a number from 0 upwards"),
        (
            "projects:\n  vision:\n    quota: lots",
            3,
            "'lots': use a number such as 0.5 or 2",
        ),
        ("projects:\n  vision:\n    quota:\n", 3, "quota has no value"),
        ("projects:\n  vision:\n    quota: 0.12345", 3, "use at most three decimals"),
        ("projects:\n  vision:\n    members: ana", 3, "members is 'ana'"),
        ("projects:\n  vision: [1, 2]", 2, "must consist of lines"),
        ("projects:\n  vision: {quota: 1, build_quota: 2}", 2, "build quota of 2 is above"),
        ("projects:\n  vision: {parent: lab}", 2, "unknown parent 'lab'"),
        ("projects:\n  a: {parent: b}\n  b: {parent: a}", 2, "its own ancestor"),
        (
            "projects:\n  c0:\n" + "".join(f"  c{n}: {{parent: c{n - 1}}}\n" for n in range(1, 21)),
            22,
            "project c20 is below 20 other projects",
        ),
        ("projects:\n  a: [\n", 3, "this is no YAML"),
        ("projects:\n\ta: 1\n", 2, "this is no YAML"),
    ],
)
def test_projects_file_error_names_its_line(tmp_path, text, line, message):
    path = tmp_path / "projects.yaml"
    path.write_text(text)
    with pytest.raises(InvalidRequest) as refused:
        read_projects(path)

    assert refused.value.message.startswith(f"{path}, line {line}: ")
    assert message in refused.value.message


def test_missing_projects_file_is_refused(tmp_path):
    with pytest.raises(InvalidRequest, match="cannot be read: No such file"):
        read_projects(tmp_path / "projects.yaml")


# -- the service's address for a client ----------------------------------------------------------


def test_client_in_a_session_reads_service_and_project_from_its_environment(tmp_path):
    environ = {
        "XDG_CONFIG_HOME": str(tmp_path),
        "RUNAI_API_URL": "http://hub/services/runai/",
        "JUPYTERHUB_API_TOKEN": "t",
        "RUNAI_PROJECT": "vision",
    }

    assert find_connection(environ) == Connection("http://hub/services/runai/", "t", "vision")


@pytest.mark.parametrize("optional_fields", [{}, {"project": "nlp"}, {"ca": "/ca.crt"}], ids=str)
def test_client_outside_sessions_connects_with_the_saved_login(tmp_path, optional_fields):
    environ = {"XDG_CONFIG_HOME": str(tmp_path)}
    saved = Connection("https://hub.example/services/runai/", "t", **optional_fields)
    write_config(saved, config_path(environ))

    assert find_connection(environ) == saved
    assert json.loads(config_path(environ).read_text()).keys() == {"url", "token", *optional_fields}
    assert stat.S_IMODE(config_path(environ).stat().st_mode) == 0o600


def test_client_in_a_session_uses_only_the_saved_logins_default_project(tmp_path):
    environ = {"XDG_CONFIG_HOME": str(tmp_path)}
    write_config(Connection("https://elsewhere/", "other", "nlp", "/ca.crt"), config_path(environ))
    environ |= {"RUNAI_API_URL": "http://hub/", "JUPYTERHUB_API_TOKEN": "t"}

    assert find_connection(environ) == Connection("http://hub/", "t", "nlp")


def test_missing_service_connection_error_suggests_runai_login(tmp_path):
    with pytest.raises(Unavailable, match="runai login"):
        find_connection({"XDG_CONFIG_HOME": str(tmp_path)})


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"url": "x"}', "secret-token {"])
def test_damaged_client_config_error_names_the_file_without_its_content(tmp_path: Path, text):
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(InvalidRequest) as damaged:
        read_config(path)

    assert str(path) in damaged.value.message
    assert "secret" not in str(damaged.value)
