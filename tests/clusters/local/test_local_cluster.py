"""The local cluster: behaviour that only real processes, files and restarts can show."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import psutil
import pytest

from labs import DEVICES, NODE, Clock, LocalLab, local_lab, plan, start, stop
from runai.hub_service.clusters.local.local_cluster import open_local_cluster
from runai.hub_service.model.records import Process
from runai.hub_service.processes.accounts.account_directory import AccountDirectory
from runai.hub_service.processes.accounts.known_accounts import KnownAccounts
from runai.hub_service.processes.user_environment import FOLDER
from runai.hub_service.wire.errors import NotFound
from starts import has_exited
from waiting import eventually_async


async def _read_output(lab: LocalLab, workload: str, **options) -> str:
    options = {"worker": None, "tail": None, "follow": False} | options
    return b"".join([c.lines async for c in lab.cluster.logs(workload, **options)]).decode()


async def _start_script(lab: LocalLab, name: str, script: str, **fields) -> str:
    """Start a shell script on one device; return the workload's id."""
    spec = lab.job(name, command=("sh", "-c", script), **fields)
    await lab.cluster.submit([spec])
    count = spec.workers
    await lab.cluster.apply(plan(*(start(spec.id, i, worker=i) for i in range(count))))
    return spec.id


def _supervisor_pid(tmp_path: Path, workload: str, attempt: int = 1, worker: int = 0) -> int:
    place = tmp_path / "data" / "jobs" / workload / f"attempt-{attempt}" / f"worker-{worker}"
    pid: int = json.loads((place / "supervisor.json").read_text())["pid"]
    return pid


# -- restarts ------------------------------------------------------------------------------------


async def test_running_job_is_adopted_after_a_service_restart(tmp_path):
    clock = Clock()
    async with local_lab(tmp_path, clock, forget=False) as lab:
        spec = lab.job(on_term=143)
        await lab.started(spec)
        before = await lab.cluster.workload(spec.id)

    async with local_lab(tmp_path, clock) as lab:
        assert before == await lab.cluster.workload(spec.id)
        await lab.end(spec, 5)
        record = await lab.until(spec.id, "failed")

    assert (record.exit_code, record.attempts) == (5, 1)


async def test_time_limit_that_passed_during_a_service_restart_ends_the_job(tmp_path):
    clock = Clock()
    async with local_lab(tmp_path, clock, forget=False) as lab:
        spec = lab.job(on_term=143, max_runtime=3600)
        await lab.started(spec)
    clock.at += 4000

    async with local_lab(tmp_path, clock) as lab:
        record = await lab.until(spec.id, "timed_out")

    assert (record.exit_code, record.ran_s) == (143, 4000)


async def test_service_restart_preserves_the_run_time_of_a_job(tmp_path):
    clock = Clock()
    async with local_lab(tmp_path, clock, forget=False) as lab:
        spec = lab.job(on_term=143, max_runtime=3600)
        await lab.started(spec)
        await lab.pass_time(100)
        await lab.cluster.apply(plan(stop(spec.id)))
        await lab.until(spec.id, "paused")
    clock.at += 4000

    async with local_lab(tmp_path, clock) as lab:
        record = await lab.cluster.workload(spec.id)

    assert (record.state, record.ran_s) == ("paused", 100)


async def test_adopted_job_can_be_stopped(tmp_path):
    clock = Clock()
    async with local_lab(tmp_path, clock, forget=False) as lab:
        spec = lab.job(on_term=143)
        await lab.started(spec)

    async with local_lab(tmp_path, clock) as lab:
        await lab.cluster.apply(plan(stop(spec.id)))
        record = await lab.until(spec.id, "paused")

    assert len(record.pauses) == 1


async def test_worker_exit_during_a_service_outage_is_found_after_the_restart(tmp_path):
    clock = Clock()
    async with local_lab(tmp_path, clock, forget=False) as lab:
        spec = lab.job()
        await lab.started(spec)
    supervisor = _supervisor_pid(tmp_path, spec.id)
    await lab.end(spec, 0)
    await eventually_async(lambda: has_exited(supervisor))

    async with local_lab(tmp_path, clock) as lab:
        record = await lab.until(spec.id, "succeeded")

    assert record.exit_code == 0


DAMAGED_EXIT_FILES = {
    "empty": b"",
    "truncated": b'{"exit_code": 0, "to',
    "a list": b"[]",
    "without fields": b"{}",
    "wrong types": b'{"exit_code": "0", "told": false, "text": ""}',
    "invalid UTF-8": b"\xff\xfe\x00",
    "a folder": None,
}


@pytest.mark.parametrize(
    ("has_program_exit", "state"),
    [(True, "succeeded"), (False, "retrying")],
    ids=["exit file of the program", "no other exit file"],
)
@pytest.mark.parametrize("content", DAMAGED_EXIT_FILES.values(), ids=DAMAGED_EXIT_FILES)
async def test_damaged_worker_exit_file_is_logged_and_read_as_missing(
    tmp_path, caplog, content, has_program_exit, state
):
    clock = Clock()
    async with local_lab(tmp_path, clock, forget=False) as lab:
        spec, other = lab.job(), lab.job("other")
        await lab.started(spec)
        await lab.cluster.submit([other])
    supervisor = _supervisor_pid(tmp_path, spec.id)
    await lab.end(spec, 0)
    await eventually_async(lambda: has_exited(supervisor))
    folder = tmp_path / "data/jobs" / spec.id / "attempt-1/worker-0"
    (folder / "exit.json").unlink()
    if content is None:
        (folder / "exit.json").mkdir()
    else:
        (folder / "exit.json").write_bytes(content)
    if not has_program_exit:
        (folder / "ended.json").unlink()

    async with local_lab(tmp_path, clock) as lab:
        await lab.until(spec.id, state)
        await lab.cluster.apply(plan(start(other.id, 1)))
        await lab.until(other.id, "running")

    assert f"{folder}/exit.json cannot be read" in caplog.text


async def test_job_start_decided_before_a_service_restart_is_made_once_after_it(tmp_path):
    clock = Clock()
    async with open_local_cluster(tmp_path / "data", DEVICES, NODE, clock=clock) as cluster:
        lab = LocalLab(cluster, clock, tmp_path / "orders")  # without a reconciler: rows only
        spec = lab.job(command=("sh", "-c", "echo once; exit 0"))
        await cluster.submit([spec])
        await cluster.apply(plan(start(spec.id, 0)))

    async with local_lab(tmp_path, clock) as lab:
        record = await lab.until(spec.id, "succeeded")
        assert await _read_output(lab, spec.id) == "once\n"

    assert record.attempts == 1


async def test_job_stop_decided_before_a_service_restart_is_made_after_it(tmp_path):
    clock = Clock()
    async with local_lab(tmp_path, clock, forget=False) as lab:
        spec = lab.job(on_term=143)
        await lab.started(spec)
    async with open_local_cluster(tmp_path / "data", DEVICES, NODE, clock=clock) as cluster:
        await cluster.apply(plan(stop(spec.id)))

    async with local_lab(tmp_path, clock) as lab:
        await lab.until(spec.id, "paused")


async def test_session_survives_a_service_restart_and_ends_with_its_process(tmp_path):
    clock = Clock()
    async with local_lab(tmp_path, clock, forget=False) as first:
        spec = first.session()
        await first.cluster.submit([spec])
        await first.cluster.apply(plan(start(spec.id, 0, share=0.5)))
        await first.cluster.attach(spec.id, await first.session_process())

    async with local_lab(tmp_path, clock) as lab:
        assert (await lab.cluster.workload(spec.id)).allocated == 500
        await first.end_session(spec)
        first.close()
        await lab.until(spec.id, "ended")


async def test_deleted_session_is_killed_after_its_grace_despite_a_service_restart(
    tmp_path,
):
    server = await asyncio.create_subprocess_exec(
        "sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.1; done",
        stdout=asyncio.subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    assert server.stdout is not None
    await server.stdout.readline()
    clock = Clock()
    async with open_local_cluster(tmp_path / "data", DEVICES, NODE, clock=clock) as cluster:
        lab = LocalLab(cluster, clock, tmp_path / "orders")  # without a reconciler: rows only
        spec = lab.session(grace_seconds=1)
        await cluster.submit([spec])
        await cluster.apply(plan(start(spec.id, 0, share=0.5)))
        started = psutil.Process(server.pid).create_time()
        await cluster.attach(spec.id, Process(server.pid, started))
        await cluster.delete(spec.id, by="ana")
    clock.at -= 3600  # a clock set back does not extend the grace

    async with local_lab(tmp_path, clock) as lab:
        await lab.until_deleted(spec.id)

    # asyncio returns 255 if other code, here psutil, has already reaped the process.
    assert await asyncio.wait_for(server.wait(), 10) in {-signal.SIGKILL, 255}
    assert not psutil.pid_exists(server.pid)


async def test_session_with_a_reused_pid_ends_and_the_process_of_that_pid_survives(lab):
    spec = lab.session()
    await lab.cluster.submit([spec])
    await lab.cluster.apply(plan(start(spec.id, 0, share=0.5)))
    process = await lab.session_process()
    earlier_process = type(process)(process.pid, process.created - 1000)

    await lab.cluster.attach(spec.id, earlier_process)

    await lab.until(spec.id, "ended")
    assert psutil.pid_exists(process.pid)


async def test_service_start_waits_until_the_former_service_has_closed_the_local_cluster(tmp_path):
    second_is_open = asyncio.Event()

    async def open_second() -> None:
        async with open_local_cluster(tmp_path / "data", DEVICES, NODE):
            second_is_open.set()

    async with open_local_cluster(tmp_path / "data", DEVICES, NODE):
        second_open = asyncio.ensure_future(open_second())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(second_is_open.wait(), 0.5)

    async with asyncio.timeout(90):
        await second_open


async def test_renamed_node_with_fewer_devices_retains_its_jobs(tmp_path):
    clock = Clock()
    async with local_lab(tmp_path, clock, forget=False) as lab:
        spec = lab.job(gpus=2)
        await lab.started(spec, device=1)

    async with open_local_cluster(tmp_path / "data", DEVICES[:2], "new", clock=clock) as cluster:
        [workload] = (await cluster.observe()).workloads
        [worker] = workload.workers
        assert (worker.node, worker.devices) == ("new", (1,))
        variables = (await cluster.environment(spec.id)).variables
        assert variables["CUDA_VISIBLE_DEVICES"].count("SIM-") == 1

    async with local_lab(tmp_path, clock):
        pass


# -- losses --------------------------------------------------------------------------------------


async def test_job_with_a_killed_supervisor_is_restarted_and_leaves_no_process(lab, tmp_path):
    script = "sleep 1000 & echo $!; setsid sleep 1000 & echo $!; echo ready; wait"
    workload = await _start_script(lab, "exp", script)
    await lab.until(workload, "running")

    async def is_ready() -> bool:
        return "ready" in await _read_output(lab, workload)

    await eventually_async(is_ready)
    background_pids = [
        int(word) for word in (await _read_output(lab, workload)).split() if word.isdigit()
    ]

    os.kill(_supervisor_pid(tmp_path, workload), signal.SIGKILL)

    record = await lab.until(workload, "retrying")
    assert len(background_pids) == 2
    assert all(has_exited(pid) for pid in background_pids)
    assert (record.failures, record.allocated) == (0, 0)
    assert record.reason.code == "interrupted"

    await lab.pass_time(10)
    await lab.cluster.apply(plan(start(workload, 0)))
    assert (await lab.cluster.environment(workload)).variables["RUNAI_RESUMED"] == "1"
    await lab.until(workload, "running")


async def test_job_that_finished_unnoticed_by_a_killed_supervisor_is_not_run_again(lab, tmp_path):
    orders = tmp_path / "finish"
    os.mkfifo(orders)
    workload = await _start_script(lab, "exp", f"sleep 1000 & read -r _ < {orders}; exit 0")
    await lab.until(workload, "running")
    process = (await lab.cluster.workload(workload)).workers[0].process
    assert process is not None
    await eventually_async(lambda: bool(psutil.Process(process.pid).children()))
    [background] = psutil.Process(process.pid).children()
    supervisor = psutil.Process(_supervisor_pid(tmp_path, workload))
    supervisor.suspend()
    orders.write_text("now\n")
    await eventually_async(lambda: has_exited(process.pid))

    supervisor.kill()

    record = await lab.until(workload, "succeeded", "retrying")
    assert (record.state, record.exit_code, record.attempts) == ("succeeded", 0, 1)
    assert has_exited(background.pid)


async def test_job_with_a_missing_program_fails_with_a_reason(lab):
    spec = lab.job(command=("no-such-program", "--fast"))
    await lab.cluster.submit([spec])
    await lab.cluster.apply(plan(start(spec.id, 0)))

    record = await lab.until(spec.id, "failed")

    assert record.exit_code == 127
    assert record.reason.text == "cannot start no-such-program: No such file or directory"


# -- environment -------------------------------------------------------------------------------


async def test_job_starts_in_its_users_home_with_python_and_without_service_secrets(
    lab, tmp_path, monkeypatch
):
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "secret-of-the-service")
    workload = await _start_script(lab, "exp", "pwd; command -v python; env", env={"LR": "0.1"})
    await lab.until(workload, "succeeded")

    workdir, python, *variables = (await _read_output(lab, workload)).splitlines()

    home = str(tmp_path / "data" / "users" / "ana")
    assert (home, f"{home}/{FOLDER}/bin/python") == (workdir, python)
    assert {f"HOME={home}", "USER=ana", "LR=0.1", "CUDA_VISIBLE_DEVICES=SIM-0"} <= set(variables)
    assert not [line for line in variables if "secret" in line]


async def test_job_submitted_from_a_notebook_cell_runs_its_source_from_a_file(lab):
    spec = lab.job(
        command=(sys.executable, "-I", "-S", "{source}", "7"),
        source="import sys\nprint(sys.argv[1])",
    )
    await lab.cluster.submit([spec])
    await lab.cluster.apply(plan(start(spec.id, 0)))
    await lab.until(spec.id, "succeeded")

    assert await _read_output(lab, spec.id) == "7\n"


async def test_checkpoints_survive_a_pause_and_are_deleted_with_the_workload(lab, tmp_path):
    script = (
        'cat "$RUNAI_CHECKPOINT_DIR/state" 2>/dev/null;'
        ' echo saved > "$RUNAI_CHECKPOINT_DIR/state"; echo ready; exec sleep 1000'
    )
    workload = await _start_script(lab, "exp", script)

    async def has_output(words: str) -> bool:
        return await _read_output(lab, workload) == words

    await eventually_async(lambda: has_output("ready\n"))
    await lab.cluster.apply(plan(stop(workload)))
    await lab.until(workload, "paused")
    await lab.cluster.apply(plan(start(workload, 1)))
    await eventually_async(lambda: has_output("ready\nsaved\nready\n"))

    await lab.cluster.delete(workload, by="ana")
    await lab.until_deleted(workload)
    jobs = tmp_path / "data" / "jobs"
    assert not (jobs / workload).exists()
    await eventually_async(lambda: not list((jobs / ".trash").iterdir()))


@pytest.mark.parametrize(
    ("user", "refusal"),
    [
        ("nobody-i-know", "User nobody-i-know has no account on this machine."),
        ("root", "User root is root, as whom nothing runs."),
    ],
)
async def test_job_submission_without_an_account_on_the_machine_is_refused(user, refusal, tmp_path):
    directory = AccountDirectory(KnownAccounts(tmp_path / "data"))
    async with local_lab(tmp_path, accounts=directory) as lab:
        with pytest.raises(NotFound, match=refusal) as refused:
            await lab.cluster.submit([lab.job("exp", user=user, command=("id", "-u"))])

    assert refused.value.code == "no_account"


# -- logs ----------------------------------------------------------------------------------------


async def test_logs_of_a_gang_name_their_workers(lab):
    workload = await _start_script(lab, "gang", "echo I am $RANK of $WORLD_SIZE", workers=2)
    await lab.until(workload, "succeeded")

    chunks = [c async for c in lab.cluster.logs(workload, worker=None, tail=None, follow=False)]

    assert [(c.worker, c.attempt, c.lines) for c in chunks] == [
        (0, 1, b"I am 0 of 2\n"),
        (1, 1, b"I am 1 of 2\n"),
    ]
    assert await _read_output(lab, workload, worker=1) == "I am 1 of 2\n"
    with pytest.raises(NotFound, match="has no worker 2"):
        await _read_output(lab, workload, worker=2)


async def test_followed_job_log_continues_over_a_pause_and_ends_with_the_job(lab):
    script = "echo begin $RUNAI_RESUMED; test $RUNAI_RESUMED = 1 || exec sleep 1000; printf end"
    workload = await _start_script(lab, "exp", script)
    followed = asyncio.ensure_future(_read_output(lab, workload, follow=True))

    async def has_begun() -> bool:
        return await _read_output(lab, workload) == "begin 0\n"

    await eventually_async(has_begun)
    await lab.cluster.apply(plan(stop(workload)))
    await lab.until(workload, "paused")
    assert not followed.done()
    await lab.cluster.apply(plan(start(workload, 0)))

    async with asyncio.timeout(90):
        assert await followed == "begin 0\nbegin 1\nend\n"


async def test_followed_job_log_ends_when_the_job_is_deleted(lab):
    workload = await _start_script(lab, "exp", "echo ready; exec sleep 1000")
    followed = asyncio.ensure_future(_read_output(lab, workload, follow=True))
    await lab.until(workload, "running")

    await lab.cluster.delete(workload, by="ana")

    async with asyncio.timeout(90):
        assert (await followed) in {"ready\n", ""}


@pytest.mark.parametrize("tail", [None, 1])
async def test_followed_job_log_excludes_the_output_of_a_later_job_of_the_same_name(lab, tail):
    workload = await _start_script(lab, "exp", "echo first; exec sleep 1000")
    followed = lab.cluster.logs(workload, worker=None, tail=tail, follow=True)
    assert (await anext(followed)).lines == b"first\n"
    await lab.cluster.delete(workload, by="ana")
    await lab.until_deleted(workload)

    await _start_script(lab, "exp", "echo second; echo secret", user="mia")
    await lab.until(workload, "succeeded")

    assert [c.lines async for c in followed] == []
    assert await _read_output(lab, workload) == "second\nsecret\n"


async def test_job_log_tail_returns_the_last_lines(lab):
    workload = await _start_script(lab, "exp", "seq 1 10")
    await lab.until(workload, "succeeded")

    assert await _read_output(lab, workload, tail=3) == "8\n9\n10\n"
