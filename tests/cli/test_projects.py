"""`runai project` against a running service, and each role's permissions."""

from __future__ import annotations

import json

import pytest

from runai.hub_service.client.connection import Connection, config_path, read_config, write_config

HOUR_S = 3600


@pytest.fixture
def admin(as_user):
    return as_user("admin")


def describe_project(command_line, name):
    return json.loads(command_line("describe", "project", name, "-o", "json").stdout)


def test_project_create_sets_its_options_and_delete_removes_it(admin):
    created = admin(
        *("project", "create", "audio", "--quota", "1.5", "--build-quota", "0.5"),
        *("--limit", "3", "--weight", "2", "--member", "bob", "--admin", "ana"),
    )

    assert created.stdout == (
        "project audio created: quota 1.5, build quota 0.5, limit 3, members bob\n"
    )
    assert {
        "quota": 1.5,
        "build_quota": 0.5,
        "limit": 3,
        "weight": 2,
        "members": ["bob"],
        "admins": ["ana"],
    }.items() <= describe_project(admin, "audio").items()
    assert admin("project", "delete", "audio").stdout == "project audio deleted\n"
    assert "audio" not in admin("projects", "list").stdout


def test_project_set_changes_only_named_fields(admin):
    before = describe_project(admin, "vision")

    admin("project", "set", "vision", "--quota", "4", "--limit", "none", "--add-member", "zoe")
    admin("project", "set", "vision", "--remove-member", "zoe")

    after = describe_project(admin, "vision")
    assert (after["quota"], after["limit"]) == (4, None)
    assert after["members"] == before["members"]


def test_quota_by_gpu_type_is_set_listed_and_replaced_by_a_number(admin):
    result = admin("project", "set", "vision", "--quota", "k40=0.5,*=1")
    before = json.loads(admin("project", "list", "-o", "json").output)
    table = admin("project", "list").output
    admin("project", "set", "vision", "--quota", "1")
    after = json.loads(admin("project", "list", "-o", "json").output)

    assert "quota 1.5 (k40 0.5, * 1)" in result.output
    assert "No node has a GPU of type k40: the quota of 0.5 counts once one has." in result.stderr
    assert "1.5 (k40 0.5, * 1)" in table
    (typed,) = [p for p in before if p["name"] == "vision"]
    (plain,) = [p for p in after if p["name"] == "vision"]
    assert (typed["quota"], typed["quota_by_type"]) == (1.5, {"k40": 0.5, "*": 1})
    assert (plain["quota"], plain["quota_by_type"]) == (1, None)


@pytest.mark.parametrize("quota", ["h100=", "=2", "h100=2,4", "h100=2,h100=1", "h100=many"])
def test_quota_by_gpu_type_that_cannot_be_read_is_refused(admin, quota):
    result = admin("project", "set", "vision", "--quota", quota)

    assert result.exit_code == 2
    assert "Invalid value for '--quota'" in result.stderr


def test_quota_above_the_cluster_is_accepted_with_a_warning(admin):
    result = admin("project", "set", "vision", "--quota", "4")  # the other projects have 3.5

    assert result.exit_code == 0
    assert "the cluster has 5" in result.stderr
    assert "the cluster has 5" in admin("project", "list").stdout


REFUSALS = {
    "not a hub admin": ("bob", ["set", "vision", "--quota", "9"], "hub admin"),
    "taken name": ("admin", ["create", "vision"], "There is a project vision"),
    "impossible name": ("admin", ["create", "Audio_1"], "Audio_1"),
    "removal of no member": (
        "admin",
        ["set", "vision", "--remove-member", "eve"],
        "eve is not among the members of vision.",
    ),
    "unknown project": ("admin", ["use", "audio"], "There is no project audio."),
    "short idle time": ("admin", ["set", "vision", "--release-idle", "10s"], "idle_session is"),
}


def test_project_commands_explain_each_refusal(as_user):
    for case, (user, arguments, sentence) in REFUSALS.items():
        result = as_user(user)("project", *arguments)

        assert result.exit_code == 1, case
        assert sentence in result.stderr.splitlines()[0], case


def test_lowered_project_limit_is_reported_with_allocated_gpus_and_excess(admin, bob, eventually):
    for name in ("one", "two"):
        bob("submit", name, "-g", "0.5", "--", "sleep", "600")
    eventually(lambda: all(bob.describe(name)["state"] == "running" for name in ("one", "two")))

    changed = admin("project", "set", "vision", "--quota", "0.5", "--limit", "0.5")

    notice = (
        "holds 1 GPU, 0.5 above its limit; nothing starts until it is below, and it is the first"
    )
    assert changed.exit_code == 0
    assert f"vision: {notice} to give GPUs back\n" in changed.stderr
    assert notice in admin("describe", "project", "vision").stdout
    assert bob.describe("one")["state"] == "running"


def test_removed_project_member_is_reported_with_their_remaining_workloads(admin, bob, eventually):
    bob("submit", "runs", "-g", "1", "--", "sleep", "600")
    eventually(lambda: bob.describe("runs")["state"] == "running")
    for name in ("late", "later"):  # the 5 GPUs are not enough beside the running job
        bob("submit", name, "-g", "1", "--workers", "5", "--", "sleep", "600")

    changed = admin("project", "set", "vision", "--remove-member", "bob")

    notice = "bob is no member any more: of bob's workloads 1 runs on and 2 do not start"
    assert f"vision: {notice}\n" in changed.stderr
    assert notice in admin("describe", "project", "vision").stdout
    refused = bob("resume", "runs")
    assert refused.exit_code == 1
    assert "You are no member of project vision any more" in refused.stderr


def test_project_set_without_options_is_a_usage_error(admin):
    assert admin("project", "set", "vision").exit_code == 2


@pytest.mark.parametrize("command", [["project", "use"], ["config", "project"]], ids=" ".join)
def test_chosen_project_is_the_default_of_later_submissions(as_user, command, monkeypatch):
    ana = as_user("ana")
    connection = Connection(
        ana.environment["RUNAI_API_URL"], ana.environment["JUPYTERHUB_API_TOKEN"]
    )
    monkeypatch.delenv("RUNAI_API_URL", raising=False)
    outside = ana.outside_session()
    write_config(connection, config_path())

    assert outside("submit", "exp1", "--", "sleep", "600").exit_code == 1
    outside(*command, "nlp")
    result = outside("submit", "exp1", "--", "sleep", "600")

    assert result.stdout.startswith("job nlp/exp1 submitted")
    saved_connection = read_config(config_path())
    assert saved_connection is not None
    assert saved_connection.project == "nlp"


def test_session_refuses_to_change_its_default_project(as_user, monkeypatch):
    monkeypatch.setenv("RUNAI_PROJECT", "vision")

    result = as_user("ana")("project", "use", "nlp")

    assert result.exit_code == 1
    assert "own project, vision" in result.stderr
    assert "-p nlp" in result.stderr


def test_time_limits_of_a_project_bind_its_jobs(admin, bob):
    changed = admin(
        *("project", "set", "vision", "--default-time-jobs", "8h", "--max-time-jobs", "48h"),
        *("--max-time-sessions", "12h", "--warn-time-jobs", "5m"),
    )
    jobs, sessions = (
        describe_project(admin, "vision")[f"time_{kind}"] for kind in ("job", "session")
    )
    refused = bob("submit", "long", "-p", "vision", "--time", "72h", "--", "true")
    allowed = bob("submit", "-p", "vision", "--dry-run", "-o", "json", "--", "true")
    inconsistent = admin("project", "set", "vision", "--max-time-jobs", "1h")
    admin(
        *("project", "set", "vision", "--default-time-jobs", "none", "--max-time-jobs", "none"),
        *("--max-time-sessions", "none", "--warn-time-jobs", "10m"),
    )

    assert "jobs at most 48h, unasked 8h" in changed.stdout
    assert jobs == {"default_s": 8 * HOUR_S, "most_s": 48 * HOUR_S, "warn_s": 300}
    assert sessions == {"default_s": None, "most_s": 12 * HOUR_S, "warn_s": 600}
    assert "72h is above the maximum of 48h for jobs of project vision" in refused.stderr
    assert json.loads(allowed.stdout)["workloads"][0]["max_runtime"] == 8 * HOUR_S
    assert "default time limit of 8h" in inconsistent.stderr
    assert describe_project(admin, "vision")["time_job"]["most_s"] is None


def test_umask_of_a_project_is_three_octal_digits(admin):
    change = admin("project", "set", "vision", "--umask", "0002")
    after = describe_project(admin, "vision")["umask"]
    refused = admin("project", "set", "vision", "--umask", "400")
    admin("project", "set", "vision", "--umask", "none")

    assert change.exit_code == 0
    assert after == "002"
    assert refused.exit_code == 1
    assert "three octal digits" in refused.stderr
    assert describe_project(admin, "vision")["umask"] == ""


def test_project_set_options_set_project_fields_and_the_value_none_unsets_them(admin):
    created = admin("project", "create", "lab", "--group", "lab", "--admin-group", "heads")
    change = admin(
        *("project", "set", "vision", "--parent", "lab", "--priority", "120", "--weight", "3"),
        *("--never-lent", "0.5", "--min-runtime", "600", "--stop-idle-sessions", "3h"),
        *("--default-time-sessions", "8h", "--warn-time-sessions", "5m", "--add-admin", "ana"),
        *("--node-types-build", "a100", "--node-types-train", "h100, a100"),
        *("--add-group", "students", "--add-admin-group", "staff"),
    )
    after = describe_project(admin, "vision")
    unset = admin(
        *("project", "set", "vision", "--parent", "none", "--stop-idle-sessions", "none"),
        *("--node-types-build", "none", "--remove-admin", "ana", "--remove-group", "students"),
        *("--remove-admin-group", "staff"),
    )
    after_unset = describe_project(admin, "vision")

    assert (created.exit_code, change.exit_code, unset.exit_code) == (0, 0, 0), change.stderr
    assert [describe_project(admin, "lab")[people] for people in ("groups", "admin_groups")] == [
        ["lab"],
        ["heads"],
    ]
    assert (after["parent"], after["priority"], after["weight"]) == ("lab", 120, 3)
    assert (after["never_lent"], after["min_runtime"]) == (0.5, 600)
    assert after["idle_session"]["stop_s"] == 3 * HOUR_S
    assert after_unset["idle_session"]["stop_s"] is None
    assert after["time_session"] == {"default_s": 8 * HOUR_S, "most_s": None, "warn_s": 300}
    assert (after["node_types_build"], after["node_types_train"]) == (["a100"], ["h100", "a100"])
    people = ("admins", "groups", "admin_groups")
    assert [after[field] for field in people] == [["ana"], ["students"], ["staff"]]
    assert [after_unset[field] for field in people] == [[], [], []]
    assert (after_unset["parent"], after_unset["node_types_build"]) == (None, None)


def test_idle_rules_of_a_project_are_off_by_default_and_change_by_project_set(admin):
    before = describe_project(admin, "vision")
    changed = admin("project", "set", "vision", "--release-idle", "30m", "--stop-idle-jobs", "2h")
    admin("project", "set", "vision", "--tell-idle", "none")
    after = describe_project(admin, "vision")

    assert changed.exit_code == 0, changed.stderr
    assert before["idle_session"]["release_s"] is None
    assert before["idle_job"]["stop_s"] is None
    assert after["idle_session"] == {
        "badge_s": 300,
        "notify_s": None,
        "release_s": 1800,
        "stop_s": None,
    }
    assert after["idle_job"]["stop_s"] == 2 * HOUR_S
