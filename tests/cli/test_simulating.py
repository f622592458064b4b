"""`runai simulate` reads files, prints figures and a picture, and explains mistakes."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import click
import pytest

from runai.hub_service.cli.commands import simulate as simulating
from runai.hub_service.client import Client
from runai.hub_service.simulation.policies import POLICIES
from runai.hub_service.simulation.results import RESULT_KEYS

# On 2 GPUs: a1 loses its first hour, as b1 takes a GPU back after it; a1 then begins anew.
TRACE = """\
job,project,submit_s,gpus,duration_s
a1,a,0,2,7200
b1,b,3600,1,3600
"""
NODES = '[{"name": "n1", "devices": 2, "device_memory_mib": 81920}]'
PROJECTS = """\
projects:
  a:
    quota: 1
  b:
    quota: 1
"""


@pytest.fixture
def files(tmp_path):
    (tmp_path / "jobs.csv").write_text(TRACE)
    (tmp_path / "projects.yaml").write_text(PROJECTS)
    return tmp_path


@pytest.fixture
def simulate(runai, files):
    def run(*arguments, **changed_options):
        options = {
            "--trace": files / "jobs.csv",
            "--cluster": "2x1",  # nodes x GPUs
            "--projects": files / "projects.yaml",
            **{f"--{name}": value for name, value in changed_options.items()},
        }
        option_words = [
            str(word) for pair in options.items() if pair[1] is not None for word in pair
        ]
        return runai("simulate", *option_words, *arguments)

    return run


def test_simulate_json_has_exactly_the_result_keys(simulate):
    result = simulate("-o", "json")

    figures = json.loads(result.stdout)
    assert tuple(figures) == RESULT_KEYS
    assert figures["pauses"] == 1
    assert figures["jobs"] == 2
    assert figures["wait_p99_h"] == 1.0  # a1 waits while b1 runs


def test_simulate_offers_every_policy():
    policy = next(option for option in simulating.simulate.params if option.name == "policy")

    assert isinstance(policy.type, click.Choice)
    assert tuple(policy.type.choices) == POLICIES


def test_simulate_prints_a_table_of_allocation_and_wait(simulate):
    result = simulate("--from", "0", "--to", "14400")

    # 7 of 8 GPU-hours, 2 of them lost with the first hour of the paused job.
    assert result.exit_code == 0
    assert result.stdout.splitlines()[:2] == [
        "Allocated:            87.5 %  (useful 62.5 %)",
        "Wait:                 0.50 h on average  (half 0.00 h, 99 in 100 1.00 h)",
    ]


def test_simulate_with_changed_quotas_reports_different_pauses(simulate):
    result = simulate("--set", "b.quota=0", "--set", "a.quota=2", "-o", "json")

    assert json.loads(result.stdout)["pauses"] == 0


def test_simulate_policy_option_selects_the_scheduling_policy(simulate):
    pauses = {
        policy: json.loads(simulate("--policy", policy, "-o", "json").stdout)["pauses"]
        for policy in ("quota", "pool")
    }

    assert pauses == {"quota": 1, "pool": 0}


def test_simulate_reads_the_cluster_from_a_file(simulate, files):
    nodes = [{"name": "dgx-1", "devices": 2, "device_memory_mib": 81920}]
    (files / "nodes.json").write_text(json.dumps(nodes))

    result = simulate("-o", "json", cluster=files / "nodes.json")

    assert json.loads(result.stdout)["jobs"] == 2


def test_simulate_reports_the_number_of_jobs_that_never_ran(simulate):
    result = simulate(cluster="1x1")

    assert result.exit_code == 0
    assert "1 of 2 jobs never ran" in result.stderr


@pytest.mark.parametrize(
    ("ending", "first_bytes"),
    [("svg", b"<svg "), ("html", b"<!doctype html>"), ("png", b"\x89PNG")],
    ids=["svg", "html", "png"],
)
def test_simulate_picture_format_follows_the_file_extension(simulate, files, ending, first_bytes):
    result = simulate("--picture", str(files / f"picture.{ending}"))

    assert result.exit_code == 0
    assert (files / f"picture.{ending}").read_bytes().startswith(first_bytes)


@pytest.mark.parametrize(
    ("arguments", "changed_options", "message"),
    [
        pytest.param([], {"trace": None}, "--trace is missing", id="no-trace"),
        pytest.param([], {"cluster": "lots"}, "neither a shape like 195x8 nor a file", id="lots"),
        pytest.param([], {"cluster": "0x8"}, "has no GPUs", id="cluster-without-nodes"),
        pytest.param(["--set", "c.quota=1"], {}, "there is no project c", id="unknown-project"),
        pytest.param(["--set", "a.qota=1"], {}, "a project has no field qota", id="unknown-field"),
        pytest.param(["--set", "a.quota=-1"], {}, "'-1' is no value for quota", id="bad-value"),
        pytest.param(["--set", "a.quota"], {}, "is no change of a project", id="no-value"),
        pytest.param(
            ["--picture", "a.gif"], {}, "a.gif is not a valid name of a picture", id="gif"
        ),
        pytest.param(["--picture", "no/a.svg"], {}, "There is no folder no.", id="no-folder"),
        pytest.param(["--from", "50", "--to", "40"], {}, "nothing to measure", id="empty-window"),
        pytest.param(["--set", "a.parent=c"], {}, "there is no such project", id="unknown-parent"),
        pytest.param(["--set", "a.parent=a"], {}, "its own ancestor: a < a", id="own-parent"),
        pytest.param([], {"cluster": "999999x999"}, "more than 100000 GPUs", id="too-many-gpus"),
    ],
)
def test_simulate_refuses_invalid_options_in_one_sentence(
    simulate, arguments, changed_options, message
):
    result = simulate(*arguments, **changed_options)

    assert result.exit_code == 1
    assert message in result.stderr


def test_simulate_measures_jobs_submitted_in_one_second_until_the_last_has_ended(simulate, files):
    (files / "jobs.csv").write_text(TRACE.replace("3600,1", "0,1"))

    figures = json.loads(simulate("-o", "json").stdout)

    # Two GPUs for two hours, then one of them for an hour.
    assert (figures["allocated_pct"], figures["jobs"]) == (pytest.approx(100 * 5 / 6, 0.01), 2)


@pytest.mark.parametrize(
    ("trace", "arguments", "message"),
    [
        pytest.param("", ["--to", "0"], "say by --to until when to measure", id="empty window"),
        pytest.param(
            "x1,nosuch,0,1,5\n", [], "Job x1 belongs to project nosuch", id="unknown project"
        ),
        pytest.param(
            "٣,a,0,٣,5\n", [], "line 4, column gpus: '٣' is no number of GPUs", id="arabic"
        ),
        pytest.param(
            "x1,a,0,100001,5\n", [], "'100001' is no number of GPUs: use at most", id="too many"
        ),
    ],
)
def test_simulate_names_mistakes_in_a_trace_with_all_jobs_at_one_second(
    simulate, files, trace, arguments, message
):
    (files / "jobs.csv").write_text(TRACE.replace("3600,1", "0,1") + trace)

    result = simulate(*arguments)

    assert result.exit_code == 1
    assert message in result.stderr


@pytest.mark.parametrize("mark", ["", "\ufeff"], ids=["plain", "byte order mark"])
def test_simulate_accepts_files_with_a_byte_order_mark(simulate, files, mark):
    for name, text in (("jobs.csv", TRACE), ("projects.yaml", PROJECTS), ("nodes.json", NODES)):
        (files / name).write_text(mark + text, encoding="utf-8")

    assert simulate(cluster=files / "nodes.json").exit_code == 0


def test_simulate_names_a_duplicate_key_in_a_nodes_file(simulate, files):
    (files / "nodes.json").write_text(NODES.replace('"devices"', '"devices": 1, "devices"'))

    result = simulate(cluster=files / "nodes.json")

    assert "'devices' is there twice in one object" in result.stderr


def test_simulate_reports_a_job_larger_than_the_cluster_as_never_run(simulate, files):
    (files / "jobs.csv").write_text(f"{TRACE}c1,a,0,100000,5\n")

    result = simulate()

    assert "1 of 3 jobs never ran" in result.stderr


def test_simulate_names_a_job_of_an_unknown_project(simulate, files):
    (files / "jobs.csv").write_text(f"{TRACE}c1,c,0,1,5\n")

    result = simulate()

    assert result.exit_code == 1
    assert "Job c1 belongs to project c, which is not among the projects." in result.stderr


@pytest.fixture
def wait_for_history(service, eventually):
    """Return a function that waits for the history of that many workloads and returns them."""

    def wait_for_count(count):
        since = datetime.now(UTC) - timedelta(hours=1)
        with Client(service.url, service.tokens["admin"]) as client:

            def read_history():
                workloads = client.history(since)
                return (
                    len(workloads) == count
                    and all(workload.asked for workload in workloads)
                    and workloads
                )

            return eventually(read_history)

    return wait_for_count


def test_simulate_replays_the_platforms_history_with_a_changed_quota(
    as_user, service, wait_for_history
):
    bob, admin = as_user("bob"), as_user("admin")
    for name, *options in (("half", "-g", "0.5", "--priority", "high"), ("two", "-g", "2")):
        assert bob("submit", name, *options, "--wait", "--", "sleep", "1").exit_code == 0
    history = {workload.id: workload for workload in wait_for_history(2)}
    with Client(service.url, service.tokens["admin"]) as client:
        snapshot = client.snapshot()
    bob("delete", "two", "--yes")

    result = admin("simulate", "--history", "1h", "--set", "vision.quota=2", "-o", "json")

    assert result.exit_code == 0, result.stderr
    assert result.stderr == (
        "Nodes, projects and policy are those of today, whatever they were meanwhile.\n"
    )
    figures = json.loads(result.stdout)
    assert figures["jobs"] == 2
    assert figures["allocated_pct"] > 0  # the time after the last submission counts
    half = history["vision/half"]
    assert half.starts == 1
    assert half.asked == {
        "workers": [{"gpus": 0.5, "cpu_milli": 100, "memory_mib": 64}],
        "preemptible": True,
        "priority": 75,  # high
        "min_workers": 1,
    }
    assert [node["devices"] for node in snapshot["nodes"]] == [5]
    assert {project["name"]: project["quota"] for project in snapshot["projects"]} == {
        "vision": 2.5,
        "nlp": 2.5,
        "capped": 1,
    }
    assert "workloads" not in snapshot
    assert not any("members" in project for project in snapshot["projects"])


def test_simulate_history_needs_a_duration_with_a_unit(as_user, service):
    result = as_user("admin")("simulate", "--history", "30")

    assert result.exit_code == 1
    assert "'30' is not a valid duration. Write 30d, 12h or 90m." in result.stderr.replace(
        "\nHint: ", " "
    )
