"""Commands that list, read and change workloads of a running service: requests and output.

The effects of suspend, resume, scale and delete are tested in tests/contract.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from runai.hub_service.client import Client
from runai.hub_service.client.transport import Transport
from runai.hub_service.processes.tmp_dirs import is_in_tmp_dir
from runai.hub_service.wire.device_schemas import NodeView
from runai.hub_service.wire.schemas import ProjectView, WhoAmI, WorkloadView

PYTHON = sys.executable
RUNAI = [PYTHON, "-m", "runai.hub_service.cli"]
SLEEP = ("--", "sleep", "600")


def state(user, name):
    return user.describe(name)["state"]


def table(text):
    header, *lines = text.splitlines()
    return header.split(), [line.split() for line in lines]


# -- list and describe ---------------------------------------------------------------------------


def test_list_has_running_and_waiting_jobs_with_reasons(bob, eventually):
    bob("submit", "runs", "-g", "0.5", *SLEEP)
    bob("submit", "waits", "--workers", "8", "-g", "1", *SLEEP)  # the node has 5 GPUs
    eventually(lambda: state(bob, "runs") == "running")

    header, (first, second, *_) = table(bob("list").stdout)

    assert header == ["NAME", "PROJECT", "USER", "STATE", "GPUS", "UTIL", "AGE", "REASON"]
    assert first[:5] == ["runs", "vision", "bob", "running", "0.5/0.5"]
    assert second[:5] == ["waits", "vision", "bob", "queued", "0/8"]
    assert "only 5 of its 8 workers fit" in " ".join(second[7:])


def test_list_and_describe_without_a_matching_workload_print_a_hint(bob):
    list_result, describe_result = bob("list"), bob("describe", "exp9")
    filter_result = bob("list", "--state", "running")

    assert (list_result.exit_code, list_result.stdout) == (0, "")
    assert "runai submit" in list_result.stderr
    assert (filter_result.exit_code, filter_result.stdout) == (0, "")
    assert filter_result.stderr == "No workload matches.\n"
    assert describe_result.exit_code == 1
    assert describe_result.stderr.splitlines() == [
        "Error: There is no workload 'exp9' that you may see.",
        "Hint: `runai list` shows those there are.",
    ]


def test_list_filters_by_kind_user_project_and_state(bob):
    bob("submit", "a", *SLEEP)
    bob("submit", "b", "--interactive", *SLEEP)

    def names(*filters):
        return [w["name"] for w in json.loads(bob("list", *filters, "-o", "json").stdout)]

    assert names() == ["a", "b"]
    assert names("jobs", "--user", "bob", "-p", "vision", "--manageable") == ["a", "b"]
    assert names("sessions") == ["b"]
    assert names("--user", "patty") == []
    assert names("--state", "failed") == []


def test_list_mine_and_manageable_follow_submitter_and_admin_rights(as_user):
    bob, ana = as_user("bob"), as_user("ana")
    bob("submit", "a", *SLEEP)
    ana("submit", "b", "-p", "vision", *SLEEP)
    as_user("admin")("project", "set", "vision", "--add-admin", "bob")

    def names(user, *filters):
        return as_user(user)("list", *filters, "-o", "name").stdout.split()

    assert [names(user, "--mine") for user in ("bob", "ana", "admin")] == [
        ["vision/a"],
        ["vision/b"],
        [],
    ]
    assert (
        names("bob", "--manageable") == names("admin", "--manageable") == ["vision/a", "vision/b"]
    )
    assert names("ana", "--manageable") == ["vision/b"]
    assert "leave one of them out" in bob("list", "--mine", "--user", "bob").stderr


def test_list_prints_projects_and_nodes_as_tables_and_json(bob):
    bob("submit", "a", *SLEEP)

    def list_json(kind):
        return json.loads(bob("list", kind, "-o", "json").stdout)

    _, projects = table(bob("list", "projects").stdout)
    vision = bob("describe", "project", "vision").stdout.splitlines()
    header, nodes = table(bob("list", "nodes", "-o", "wide").stdout)

    assert [WorkloadView.model_validate(item).name for item in list_json("jobs")] == ["a"]
    assert len([ProjectView.model_validate(item) for item in list_json("projects")]) == 3
    assert len([NodeView.model_validate(item) for item in list_json("nodes")]) == 1
    assert [row[:3] for row in projects] == [
        ["vision", "0", "2.5"],
        ["nlp", "0", "2.5"],
        ["capped", "0", "1"],
    ]
    assert vision[0].split() == ["Name:", "vision"]
    assert header[0] == "NODE"
    assert len(nodes) == 5 + 2  # a line per GPU; the last lines are the CPUs and the note


def test_list_with_name_output_prints_one_name_per_line(bob):
    bob("submit", "a", *SLEEP)
    bob("submit", "sweep", "--array", "3", "-g", "1", *SLEEP)

    assert "vision/a" in bob("list", "-o", "name").stdout.splitlines()
    assert bob("list", "projects", "-o", "name").stdout.split() == ["vision", "nlp", "capped"]
    assert len(bob("list", "nodes", "-o", "name").stdout.split()) == 1


def test_array_elements_are_listed_once_they_begin(bob, eventually):
    bob("submit", "sweep", "--array", "3", "-g", "1", *SLEEP)
    eventually(lambda: state(bob, "sweep-0") == "running")

    _, folded = table(bob("list").stdout)
    _, elements = table(bob("list", "--elements").stdout)

    assert folded[0][0] == "sweep-[0-2]"
    assert "sweep-0" in [row[0] for row in elements]

    described = bob("describe", "sweep").stdout
    assert "Jobs:" in described
    assert "Allocated" not in described  # a line of each of the array's jobs


def test_simulated_gpus_are_marked_in_every_table_and_description(bob, eventually):
    bob("submit", "a", "-g", "1", *SLEEP)
    eventually(lambda: state(bob, "a") == "running")
    (node,) = json.loads(bob("list", "nodes", "-o", "json").stdout)

    for arguments in (
        *(["list"], ["list", "nodes"], ["top"], ["top", "jobs"]),
        ["describe", "node", node["name"]],
    ):
        assert "* simulated" in bob(*arguments).stdout, arguments
    assert "while allocated (simulated)" in bob("describe", "a").stdout
    lines = bob("top").stdout.splitlines()
    requested = f"{node['name']}: 0 of 40 simulated CPUs requested"
    first = lines.index(requested) + 1
    assert requested in bob("list", "nodes").stdout.splitlines()
    averages = lines[first : first + 3]
    assert [line.partition(":")[0] for line in averages] == [
        "last hour",
        "last 24 hours",
        "last 7 days",
    ]
    assert all(line.endswith("allocated on average") for line in averages)


def test_describe_accepts_every_form_of_a_workload_name(bob):
    bob("submit", "exp1", "-g", "1", *SLEEP)

    for words in (["exp1"], ["job", "exp1"], ["vision/exp1"]):
        lines = [line.split() for line in bob("describe", *words).stdout.splitlines()]
        assert lines[0] == ["Name:", "exp1"], words
        assert ["Command:", "sleep", "600"] in lines
        assert ["History:"] in lines


def test_usage_prints_averages_by_project_and_user(bob, eventually):
    bob("submit", "a", "-g", "1", *SLEEP)

    for group, name in (("projects", "vision"), ("users", "bob")):

        def usage_row(group: str = group) -> list[str]:
            lines = bob("usage", group, "--since", "2h").stdout.splitlines()
            assert len(lines) > 1, "nothing is counted yet"
            assert lines[0].split() == ["NAME", "ALLOCATED", "UTIL", "GPU-HOURS", "USED", "IDLE"]
            return [str(word) for word in lines[1].split()]

        assert eventually(usage_row)[0] == name
        usage_by_name = {o["name"]: o for o in json.loads(bob("usage", group, "-o", "json").stdout)}
        assert usage_by_name[name]["allocated_gpu_hours"] > 0
    assert "is not a valid duration" in bob("usage", "users", "--since", "soon").stderr


def test_ambiguous_workload_name_is_refused_until_a_project_is_chosen(
    as_user, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    ana = as_user("ana")
    for project in ("vision", "nlp"):
        ana("submit", "exp1", "-p", project, *SLEEP)

    result = ana("describe", "exp1")

    assert result.exit_code == 1
    assert "Say which: nlp/exp1, vision/exp1." in result.stderr
    monkeypatch.setenv("RUNAI_PROJECT", "nlp")
    assert ana.describe("exp1")["project"] == "nlp"


# -- logs and exec -------------------------------------------------------------------------------


def test_followed_log_ends_with_the_job(bob):
    bob("submit", "exp1", "--", PYTHON, "-c", "[print(i) for i in range(5)]")

    assert bob("logs", "exp1", "-f").stdout.splitlines() == list("01234")
    assert bob("logs", "exp1", "--tail", "2").stdout.splitlines() == ["3", "4"]


def test_followed_log_shows_a_line_that_has_not_ended(bob):
    program = "import signal; print('\\r 1 %\\r 2 %', end='', flush=True); signal.pause()"
    bob("submit", "exp1", "--", PYTHON, "-c", program)
    command, environment = [*RUNAI, "logs", "exp1", "-f"], os.environ | bob.environment
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.read(10) == b"\r 1 %\r 2 %"

        bob("delete", "exp1")
        assert process.wait(60) == 0


def test_log_in_a_pipe_retains_its_colours(bob):
    bob("submit", "exp1", "--wait", "--", "printf", "\\033[31mred\\033[0m\\r\\n")

    assert bob("logs", "exp1").stdout_bytes == b"\x1b[31mred\x1b[0m\r\n"


def test_followed_log_continues_after_a_pause(bob, eventually):
    print_statement = "print('resumed', os.environ['RUNAI_RESUMED'], flush=True)"
    program = f"import os, signal; {print_statement}; signal.pause()"
    bob("submit", "exp1", "-g", "1", "--grace", "1", "--", PYTHON, "-c", program)
    command = [*RUNAI, "logs", "exp1", "-f"]
    environment = os.environ | bob.environment
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "resumed 0\n"

        bob("suspend", "exp1")
        eventually(lambda: state(bob, "exp1") == "suspended")
        assert process.poll() is None
        bob("resume", "exp1")
        assert process.stdout.readline() == "resumed 1\n"

        bob("delete", "exp1")
        assert process.wait(60) == 0


def test_followed_log_reports_a_job_deleted_while_it_waits(bob, monkeypatch):
    bob("submit", "late", "--workers", "8", "-g", "1", "--", "echo", "hi")

    def delete_job(self, workload, **_options):
        self.delete(workload)  # the stream ends with the job
        return iter(())

    monkeypatch.setattr(Client, "logs", delete_job)

    result = bob("logs", "late", "-f")

    assert (result.exit_code, result.stdout) == (1, "")
    assert "vision/late was deleted before it wrote anything." in result.stderr


def test_logs_of_a_job_without_output_explain_why(bob):
    bob("submit", "exp1", "--workers", "8", "-g", "1", *SLEEP)

    result = bob("logs", "exp1")

    assert result.stdout == ""
    assert result.stderr.startswith(
        "vision/exp1 has written nothing (queued: only 5 of its 8 workers"
    )


def test_log_lines_of_several_workers_are_prefixed(bob):
    program = "import os; print('rank', os.environ['RANK'], flush=True)"
    bob("submit", "exp1", "--workers", "2", "--wait", "--", PYTHON, "-c", program)

    assert sorted(bob("logs", "exp1").stdout.splitlines()) == ["[0] rank 0", "[1] rank 1"]
    assert bob("logs", "exp1", "--worker", "1").stdout == "rank 1\n"


def test_exec_runs_a_program_on_the_workloads_devices(bob, eventually, tmp_path):
    bob("submit", "exp1", "-g", "0.5", "-e", "OWN=yes", *SLEEP)
    eventually(lambda: state(bob, "exp1") == "running")
    program = (
        "import os, sys; e = os.environ; "
        "print(e['RUNAI_WORKLOAD'], e['RUNAI_GPU_FRACTION'], e['OWN'], os.getcwd()); sys.exit(7)"
    )

    process = subprocess.run(
        [*RUNAI, "exec", "-it", "exp1", "--", PYTHON, "-c", program],
        env=os.environ | bob.environment,
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )

    assert process.returncode == 7
    assert process.stdout.split() == ["vision/exp1", "0.5", "yes", str(tmp_path)]


def test_exec_inherits_no_cpus_of_the_worker_it_is_called_in(bob, eventually):
    bob("submit", "exp1", "-g", "0.5", *SLEEP)
    eventually(lambda: state(bob, "exp1") == "running")
    caller = {"RUNAI_WORKER_CPUS": "1", "LOKY_MAX_CPU_COUNT": "1", "OMP_NUM_THREADS": "1"}
    program = f"import os; print(sorted(os.environ.keys() & {{*{[*caller]}}}))"

    process = subprocess.run(
        [*RUNAI, "exec", "exp1", "--", PYTHON, "-c", program],
        env=os.environ | bob.environment | caller,
        capture_output=True,
        text=True,
        check=True,
    )

    assert process.stdout == "[]\n"


def test_exec_has_the_tmpdir_of_the_job_and_not_of_its_caller(bob, eventually, tmp_path):
    bob("submit", "exp1", "-g", "0.5", "--", "sh", "-c", "echo $TMPDIR; sleep 1000")
    eventually(lambda: "runai-" in bob("logs", "exp1").stdout)

    process = subprocess.run(
        [*RUNAI, "exec", "exp1", "--", "sh", "-c", "echo $TMPDIR"],
        env=os.environ | bob.environment | {"TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )

    assert process.stdout == bob("logs", "exp1").stdout
    assert is_in_tmp_dir(process.stdout.strip())


@pytest.mark.parametrize(
    "options", [["--workers", "2"], ["--elastic"]], ids=["gang", "elastic job"]
)
def test_exec_gets_no_variables_of_distributed_training(bob, eventually, options):
    bob("submit", "exp1", *options, "-g", "1", "-e", "PET_NNODES=2", *SLEEP)
    eventually(lambda: state(bob, "exp1") == "running")
    program = (
        "import os; print(*(n for n in os.environ if n.startswith(('MASTER_', 'PET_')) or "
        "n.endswith(('RANK', 'WORLD_SIZE', 'ELASTIC_DIR'))), os.environ['RUNAI_WORKER'])"
    )

    process = subprocess.run(
        [*RUNAI, "exec", "exp1", "--", PYTHON, "-c", program],
        env=os.environ | bob.environment,
        capture_output=True,
        text=True,
        check=True,
    )

    assert process.stdout == "vision/exp1-0\n"


# -- suspend, resume, scale, delete --------------------------------------------------------------


def test_suspend_and_resume_print_the_new_state(bob):
    bob("submit", "exp1", "--workers", "8", "-g", "1", *SLEEP)

    suspended = bob("suspend", "exp1")
    between = state(bob, "exp1")
    resumed = bob("resume", "job", "exp1")

    assert (suspended.stdout, between) == ("job vision/exp1 suspended\n", "suspended")
    assert (resumed.stdout, state(bob, "exp1")) == ("job vision/exp1 queued again\n", "queued")


def test_suspend_continues_after_a_refused_workload(bob):
    bob("submit", "lab", "--interactive", *SLEEP)
    bob("submit", "waits", "--workers", "8", "-g", "1", *SLEEP)

    suspended = bob("suspend", "lab", "waits")
    deleted = bob("delete", "lab", "vision/waits")

    assert suspended.exit_code == 1
    assert suspended.stdout == "job vision/waits suspended\n"
    assert suspended.stderr.startswith("Error: ")
    assert deleted.stdout == "session vision/lab deleted\njob vision/waits deleted\n"


def test_elastic_job_is_scaled_up_but_not_beyond_its_projects_limit(as_user, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    eve = as_user("eve")
    eve("submit", "big", "--elastic", "--workers", "2", *SLEEP)

    scaled = eve("scale", "big", "--workers", "3", "--min-workers", "2")
    refused = eve("scale", "big", "--workers", "9", "--min-workers", "9")

    assert scaled.exit_code == 0
    assert "of 2 to 3 GPUs" in scaled.stdout
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "9 GPUs are more than project capped may ever hold" in refused.stderr
    job = eve.describe("big")
    assert (job["min_workers"], len(job["workers"])) == (2, 3)


def test_delete_all_finished_deletes_only_the_callers_finished_jobs(bob, as_user, eventually):
    bob("submit", "done", "--wait", "--", "true")
    bob("submit", "runs", *SLEEP)

    admin_result = as_user("admin")("delete", "--all-finished")  # the jobs are bob's
    bob("delete", "--all-finished")

    assert admin_result.stderr == "Nothing of yours is finished.\n"
    eventually(
        lambda: [w["name"] for w in json.loads(bob("list", "-o", "json").stdout)] == ["runs"]
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["delete"], "Name workloads, or say --all-finished."),
        (["delete", "a", "--all-finished"], "Name workloads, or say --all-finished."),
        (["scale", "a"], "Say --workers, --min-workers or both."),
    ],
    ids=["delete nothing", "delete names and --all-finished", "scale without a number"],
)
def test_missing_or_conflicting_command_arguments_exit_with_code_2(runai, arguments, sentence):
    result = runai(*arguments)

    assert result.exit_code == 2
    assert sentence in result.stderr


@pytest.mark.parametrize(
    ("command", "signal_number", "code"),
    [
        pytest.param("submit", signal.SIGINT, 130, id="submission, Ctrl-C"),
        pytest.param("wait", signal.SIGINT, 130, id="wait, Ctrl-C"),
        pytest.param("submit", signal.SIGHUP, -signal.SIGHUP, id="submission, closed terminal"),
    ],
)
def test_interrupted_wait_command_leaves_the_job_running(bob, command, signal_number, code):
    if command == "wait":
        bob("submit", "exp1", *SLEEP)
    arguments = ["wait", "exp1"] if command == "wait" else ["submit", "exp1", "--wait", *SLEEP]
    process = subprocess.Popen(
        # The tests may run under nohup, or behind & in a script.
        ["env", f"--default-signal={signal_number.name.removeprefix('SIG')}", *RUNAI, *arguments],
        env=os.environ | bob.environment,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    while not process.stderr.readline().startswith("vision/exp1 running"):
        assert process.poll() is None
    process.send_signal(signal_number)
    _, errors = process.communicate(timeout=120)

    assert process.returncode == code
    assert ("runai delete vision/exp1" in errors) == (signal_number == signal.SIGINT)
    assert state(bob, "exp1") == "running"


def test_submit_wait_continues_after_a_service_restart(
    start_service, command_line, tmp_path, eventually
):
    gate = tmp_path / "gate"
    program = (
        f"import pathlib, time\nwhile not pathlib.Path({str(gate)!r}).exists(): time.sleep(0.02)"
    )
    with start_service(leaves_jobs=True) as service:
        bob = command_line(service, "bob")
        process = subprocess.Popen(
            [*RUNAI, "submit", "exp1", "-g", "1", "--wait", "--", PYTHON, "-c", program],
            env=os.environ | bob.environment,
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        eventually(lambda: state(bob, "exp1") == "running")
    with start_service(port=service.port):
        gate.touch()
        _, errors = process.communicate(timeout=120)

    assert process.returncode == 0
    assert errors.splitlines()[-1] == "vision/exp1 succeeded: exit code 0"


# -- the terminal --------------------------------------------------------------------------------


def test_shell_completion_offers_workload_names(bob):
    bob("submit", "exp1", *SLEEP)
    process = subprocess.run(
        RUNAI,
        env=os.environ
        | bob.environment
        | {"_RUNAI_COMPLETE": "bash_complete", "COMP_WORDS": "runai logs ex", "COMP_CWORD": "2"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert process.stdout.split() == ["plain,exp1"]


def test_login_token_is_never_printed(bob):
    token = bob.environment["JUPYTERHUB_API_TOKEN"]

    for arguments in (["whoami"], ["config"], ["doctor"], ["config", "show", "-o", "json"]):
        assert token not in bob(*arguments).output, arguments
    assert WhoAmI.model_validate_json(bob("whoami", "-o", "json").stdout).name == "bob"


@pytest.mark.parametrize(
    "arguments", [["logs"], ["exec"], ["logs", "-f"]], ids=["logs", "exec", "follow"]
)
def test_logs_and_exec_refuse_an_array_and_name_its_jobs(bob, arguments):
    bob("submit", "sweep", "--array", "3", *SLEEP)

    result = bob(*arguments, "sweep", *(["--", "true"] if arguments == ["exec"] else []))

    assert result.exit_code == 1
    assert "vision/sweep is an array of 3 jobs; this is for one of them." in result.stderr
    assert "Name it: sweep-0 to sweep-2." in result.stderr


def test_resume_and_delete_print_the_workloads_new_state_and_the_arrays_job_count(bob):
    bob("submit", "lr", "--array", "3", *SLEEP)
    bob("submit", "exp1", "-g", "1", *SLEEP)
    bob("suspend", "exp1")

    resumed = bob("resume", "exp1").stdout  # its processes may still be ending
    assert resumed in {f"job vision/exp1 {state}\n" for state in ("queued again", "starting")}
    assert bob("delete", "lr").stdout.startswith("array vision/lr (3 jobs) ")


def test_scale_refuses_a_job_that_is_not_elastic(bob):
    bob("submit", "exp1", *SLEEP)

    result = bob("scale", "exp1", "--workers", "1")

    assert "vision/exp1 is not elastic" in result.stderr


# -- another workload of the same name ------------------------------------------------------------

COMMANDS = {
    "suspend": ("suspend", "exp"),
    "resume": ("resume", "exp"),
    "delete": ("delete", "exp"),
    "delete --all-finished": ("delete", "--all-finished"),
    "scale": ("scale", "exp", "--workers", "2"),
    "keep": ("keep", "exp"),
    "release": ("release", "exp"),
    "regain": ("regain", "exp"),
    "describe": ("describe", "exp"),
    "logs": ("logs", "exp", "-f"),
    "exec": ("exec", "exp", "--", "true"),
    "submit --wait": ("submit", "exp", "--wait", "--", "true"),
    "wait": ("wait", "exp"),
}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_command_refuses_a_workload_that_replaced_its_target(
    bob, service, eventually, monkeypatch, command
):
    if command[0] != "submit":
        bob("submit", "exp", "--", "true")
        eventually(lambda: state(bob, "exp") == "succeeded")
    send, listings = Transport.send, list[object]()

    def replace_after_first_listing(transport, call):
        reply = send(transport, call)
        if call.path == "api/v1/workloads" and not listings:
            listings.append(call)
            bob("delete", "exp")
            eventually(lambda: bob("submit", "exp", *SLEEP).exit_code == 0)
        return reply

    monkeypatch.setattr(Transport, "send", replace_after_first_listing)
    result = bob(*command)

    assert result.exit_code == 1
    assert "this is another one, submitted by bob at" in result.stderr
    assert state(bob, "exp") in {"queued", "starting", "running"}
