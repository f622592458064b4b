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

LEAST = {"RUNAI_DATA_DIR": "/data", "RUNAI_HUB_TOKEN": "secret-of-the-hub"}
HUB = {
    "JUPYTERHUB_API_URL": "http://127.0.0.1:8081/hub/api",
    "JUPYTERHUB_API_TOKEN": "secret-of-the-service",
    "JUPYTERHUB_SERVICE_NAME": "runai",
    "JUPYTERHUB_SERVICE_PREFIX": "/jupyter/services/runai/",
    "JUPYTERHUB_SERVICE_URL": "http://127.0.0.1:9001",
    "JUPYTERHUB_BASE_URL": "/jupyter/",
    "JUPYTERHUB_CLIENT_ID": "service-runai",
}


def test_little_is_enough():
    config = Config.from_environment(LEAST)

    assert (config.host, config.port, config.prefix) == ("127.0.0.1", 0, "/services/runai/")
    assert (config.gpus, config.simulate, config.projects_file, config.hub) == (None,) * 4


def test_hub_environment_sets_port_prefix_and_oauth_scopes():
    config = Config.from_environment({**LEAST, **HUB})

    assert (config.port, config.prefix) == (9001, "/jupyter/services/runai/")
    assert config.api_url == "http://127.0.0.1:9001/jupyter/services/runai/"
    assert config.hub is not None
    assert config.hub.access_scopes == ("access:services!service=runai",)
    assert config.hub.callback_url == "/jupyter/services/runai/oauth_callback"


REAL = replace(SimulatedDevices(1, node="lab").devices()[0], simulated=False)


@pytest.mark.parametrize(
    ("environ", "there", "devices", "expected"),
    [
        pytest.param({}, 16, [REAL], NodeCapacity(14_000, 57_344), id="7 of 8 parts"),
        pytest.param({}, 2, [], NodeCapacity(2000, 57_344), id="few CPUs, and no GPU"),
        pytest.param({}, 15, [REAL], NodeCapacity(14_000, 57_344), id="rounded up"),
        pytest.param({}, 2, SimulatedDevices(3, node="lab").devices(), NodeCapacity(24_000),
                     id="8 CPUs for each simulated GPU"),
        pytest.param({"RUNAI_CPUS": "4", "RUNAI_MEMORY": "56G"}, 16, [REAL],
                     NodeCapacity(4000, 57_344), id="as set"),
        pytest.param({"RUNAI_CPUS": "0", "RUNAI_MEMORY": "500M"}, 2,
                     SimulatedDevices(3, node="lab").devices(), NodeCapacity(0, 500),
                     id="as set beside simulated GPUs"),
    ],
)  # fmt: skip
def test_machine_offers_seven_eighths_of_its_cpu_and_memory_or_what_is_set(
    monkeypatch, environ, there, devices, expected
):
    monkeypatch.setattr("os.sched_getaffinity", lambda _process: set(range(there)))
    memory = psutil.virtual_memory()._replace(total=65_536 * 2**20)
    monkeypatch.setattr("psutil.virtual_memory", lambda: memory)

    assert capacity_of(Config.from_environment(LEAST | environ), devices) == expected


def test_an_agents_token_is_its_own():
    given = Config.from_environment(LEAST | {"RUNAI_AGENT_TOKEN": "of-the-node"})

    assert (given.agent_token, "of-the-node" in repr(given)) == ("of-the-node", False)
    with pytest.raises(InvalidRequest, match="RUNAI_AGENT_TOKEN is the hub's token") as refused:
        Config.from_environment(LEAST | {"RUNAI_AGENT_TOKEN": LEAST["RUNAI_HUB_TOKEN"]})
    assert LEAST["RUNAI_HUB_TOKEN"] not in str(refused.value)


def test_how_eagerly_elastic_jobs_grow_is_set():
    given = Config.from_environment(
        LEAST
        | {
            "RUNAI_ELASTIC_GROW_EVERY": "5",
            "RUNAI_ELASTIC_RESIZE_COST": "120",
            "RUNAI_ELASTIC_PAYS_FROM": "off",
        }
    )

    assert given.elastic == ElasticRules(grow_every_s=5, resize_cost_s=120, pays_from=None)
    assert Config.from_environment(LEAST).elastic == ElasticRules()


def test_environment_sets_request_and_job_limits():
    given = Config.from_environment(
        LEAST
        | {
            "RUNAI_USER_CALLS": "5",
            "RUNAI_USER_OPEN": "0",
            "RUNAI_SUBMISSIONS_AT_ONCE": "7",
            "RUNAI_USER_JOBS": "50",
        }
    )

    assert given.allowance == Allowance(
        calls_per_s=5, open_at_once=0, submissions_at_once=7, unfinished_jobs=50
    )
    assert Config.from_environment(LEAST).allowance == Allowance(30, 200, 256, 20_000)


ON_KUBERNETES = LEAST | {"RUNAI_CLUSTER": "kubernetes"}


def test_how_jobs_are_confined_is_set():
    bounds = {"RUNAI_JOBS_CPU_LIMIT": "2.5", "RUNAI_JOBS_MEMORY_LIMIT": "16Gi"}
    given = Config.from_environment(ON_KUBERNETES | bounds | {"RUNAI_JOBS_API_TOKEN": "1"})
    plain = Config.from_environment(ON_KUBERNETES | dict.fromkeys(bounds, ""))

    assert given.kube_config is not None
    assert plain.kube_config is not None
    assert given.kube_config.jobs_limits == {"cpu": "2.5", "memory": "16Gi"}
    assert given.kube_config.jobs_token
    assert (plain.kube_config.jobs_limits, plain.kube_config.jobs_token) == ({}, False)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RUNAI_JOBS_CPU_LIMIT", "many"),
        *(("RUNAI_JOBS_MEMORY_LIMIT", value) for value in ("-1", "1GB", "1e3", "٣", "16Gi\n")),
    ],
)
def test_limits_of_jobs_are_amounts_as_kubernetes_writes_them(name, value):
    with pytest.raises(InvalidRequest, match=f"{name} is "):
        Config.from_environment(ON_KUBERNETES | {name: value})


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        pytest.param({}, RetentionPolicy(max_age_s=30 * 86400, max_finished=10_000), id="a month"),
        pytest.param({"RUNAI_JOBS_TTL": "86400"}, RetentionPolicy(max_age_s=86400), id="a day"),
        pytest.param(
            {"RUNAI_JOBS_TTL": "0"},
            RetentionPolicy(max_age_s=600),
            id="never less than ten minutes",
        ),
        pytest.param({"RUNAI_JOBS_KEPT": "100"}, RetentionPolicy(max_finished=100), id="so many"),
    ],
)
def test_for_how_long_finished_workloads_are_kept_is_set(given, kept):
    assert Config.from_environment(LEAST | given).retention == kept


@pytest.mark.parametrize(
    ("given", "files"),
    [
        pytest.param({}, 200_000, id="a checkpoint of 100 files after each of 2,000 epochs"),
        pytest.param({"RUNAI_JOB_FILES": "0"}, 0, id="any number"),
        pytest.param({"RUNAI_JOB_FILES": "5000000"}, 5_000_000, id="so many"),
    ],
)
def test_how_many_files_a_job_may_have_is_set(given, files):
    assert Config.from_environment(LEAST | given).job_files == files


def test_the_ledger_may_be_on_a_postgresql_server():
    given = Config.from_environment({**LEAST, "RUNAI_LEDGER": "postgresql://runai@db/ledger"})

    assert given.ledger == "postgresql+psycopg://runai@db/ledger"
    assert Config.from_environment(LEAST).ledger == ""


def test_an_address_that_is_none_is_refused_without_showing_its_password():
    with pytest.raises(InvalidRequest, match="RUNAI_LEDGER is no address") as refused:
        Config.from_environment({**LEAST, "RUNAI_LEDGER": "mysql://runai:secret@db/ledger"})

    assert "secret" not in f"{refused.value} {refused.value.hint}"


def test_no_secret_is_shown_when_a_configuration_is_printed():
    ledger = {"RUNAI_LEDGER": "postgresql://runai:secret@db/ledger"}
    shown = repr(Config.from_environment({**LEAST, **HUB, **ledger}))

    assert "secret" not in shown


@pytest.mark.parametrize("variable", ["RUNAI_DATA_DIR", "RUNAI_HUB_TOKEN"])
def test_a_missing_setting_is_named(variable):
    with pytest.raises(InvalidRequest, match=f"{variable} is not set"):
        Config.from_environment({**LEAST, **HUB, variable: ""})


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
def test_a_wrong_setting_is_named_with_its_value(variable, value):
    with pytest.raises(InvalidRequest, match=f"{variable} is '{value}'"):
        Config.from_environment({**LEAST, **HUB, variable: value})


# -- projects.yaml -------------------------------------------------------------------------------

GOOD = """
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


def test_a_file_is_read_parents_first(tmp_path):
    path = tmp_path / "projects.yaml"
    path.write_text(GOOD)

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


def test_an_empty_file_has_no_projects(tmp_path):
    path = tmp_path / "projects.yaml"
    path.write_text("# nothing yet\n")

    assert read_projects(path) == []


def test_a_file_of_projects_may_begin_with_a_byte_order_mark(tmp_path):
    path = tmp_path / "projects.yaml"
    path.write_text("\ufeffprojects:\n  idle:\n", encoding="utf-8")

    assert read_projects(path) == [ProjectSpec("idle")]


@pytest.mark.parametrize(
    ("text", "line", "said"),
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
        ("projects:\n  vision:\n    quota: {h100: -1}", 3, "quota is -1: it must be at least 0"),
        ("projects:\n  vision:\n    quota: {h100: }", 3, "the quota of h100 has no value"),
        ("projects:\n  vision:\n    quota: {}", 3, "it must not be empty"),
        ("projects:\n  vision:\n    quota: -1", 3, "quota is -1: it must be at least 0"),
        ("projects:\n  vision:\n    quota: lots", 3, "quota is 'lots': it must be a number"),
        ("projects:\n  vision:\n    quota:\n", 3, "quota has no value"),
        ("projects:\n  vision:\n    quota: 0.12345", 3, "use at most 3 decimals"),
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
def test_a_mistake_is_named_with_its_line(tmp_path, text, line, said):
    path = tmp_path / "projects.yaml"
    path.write_text(text)
    with pytest.raises(InvalidRequest) as wrong:
        read_projects(path)

    assert wrong.value.message.startswith(f"{path}, line {line}: ")
    assert said in wrong.value.message


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InvalidRequest, match="cannot be read: No such file"):
        read_projects(tmp_path / "projects.yaml")


# -- the service's address for a client ----------------------------------------------------------


def test_a_session_finds_its_service_and_project_by_itself(tmp_path):
    environ = {
        "XDG_CONFIG_HOME": str(tmp_path),
        "RUNAI_API_URL": "http://hub/services/runai/",
        "JUPYTERHUB_API_TOKEN": "t",
        "RUNAI_PROJECT": "vision",
    }

    assert find_connection(environ) == Connection("http://hub/services/runai/", "t", "vision")


@pytest.mark.parametrize("optional", [{}, {"project": "nlp"}, {"ca": "/ca.crt"}], ids=str)
def test_elsewhere_it_is_the_one_that_was_logged_in_to(tmp_path, optional):
    environ = {"XDG_CONFIG_HOME": str(tmp_path)}
    kept = Connection("https://hub.example/services/runai/", "t", **optional)
    write_config(kept, config_path(environ))

    assert find_connection(environ) == kept
    assert json.loads(config_path(environ).read_text()).keys() == {"url", "token", *optional}
    assert stat.S_IMODE(config_path(environ).stat().st_mode) == 0o600


def test_of_a_login_the_default_project_alone_holds_in_a_session_that_has_none(tmp_path):
    environ = {"XDG_CONFIG_HOME": str(tmp_path)}
    write_config(Connection("https://elsewhere/", "other", "nlp", "/ca.crt"), config_path(environ))
    environ |= {"RUNAI_API_URL": "http://hub/", "JUPYTERHUB_API_TOKEN": "t"}

    assert find_connection(environ) == Connection("http://hub/", "t", "nlp")


def test_with_neither_the_way_out_is_named(tmp_path):
    with pytest.raises(Unavailable, match="runai login"):
        find_connection({"XDG_CONFIG_HOME": str(tmp_path)})


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"url": "x"}', "secret-token {"])
def test_a_damaged_file_is_named_but_not_repeated(tmp_path: Path, text):
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(InvalidRequest) as damaged:
        read_config(path)

    assert str(path) in damaged.value.message
    assert "secret" not in str(damaged.value)
