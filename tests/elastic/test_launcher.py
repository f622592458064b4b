"""The launcher with real processes that speak the protocol but do not train."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from runai.elastic.job_directory import JobDirectory, lives
from runai.elastic.run import main
from runai.hub_service.wire.elastic_messages import ElasticFiles, Target, WorkerPhase
from waiting import eventually

SIGTERM_EXIT_CODE = 128 + signal.SIGTERM
WORKER_SCRIPT = """
import os, signal, sys, time
from runai.elastic.membership import Membership, StopRequest
from runai.hub_service.wire.elastic_messages import WorkerPhase

directory, me = os.environ["RUNAI_ELASTIC_DIR"], os.environ["RUNAI_WORKER"]
mine = os.path.join(directory, me)
membership, stop = Membership.from_environment(), StopRequest()
stop.listen()
membership.report(WorkerPhase.READY)
update = 0
while True:
    target = membership.read_target()
    if target and membership.rank_in(target) is not None and target.gen > membership.gen:
        membership.gen = target.gen
    if stop.is_requested or (target and membership.is_excluded_by(target)):
        membership.report(WorkerPhase.LEFT)
        sys.exit(143)
    if os.path.exists(os.path.join(directory, "finish")) and membership.gen:
        sys.exit(0)
    for code in (3, 143):
        if os.path.exists(f"{mine}.{code}"):
            sys.exit(code)
    if membership.gen:
        update += 1
        membership.progress(update, update * 10, len(target.ranks))
    time.sleep(0.01)
"""


@pytest.fixture
def job(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(WORKER_SCRIPT)
    launched = _LauncherJob(tmp_path / "job", script)
    yield launched
    launched.close()


class _LauncherJob:
    def __init__(self, directory, script):
        self.directory, self.script = directory, script
        self.files = ElasticFiles(directory)
        self.processes = []

    def start(self, *options, script=None):
        command = [sys.executable, "-m", "runai.elastic.run", "--directory", str(self.directory)]
        process = subprocess.Popen(
            [*command, *options, str(script or self.script)], stderr=subprocess.PIPE, text=True
        )
        self.processes.append(process)
        return process

    @property
    def ranks(self):
        target = self.files.target()
        return target.ranks if target else ()

    def is_trained_by(self, *names):
        """Return True if exactly these workers train, all in the newest generation."""
        target, statuses = self.files.target(), self.files.statuses()
        return (
            target is not None
            and target.ranks == names
            and all(
                name in statuses
                and statuses[name].gen == target.gen
                and statuses[name].state is WorkerPhase.RUNNING
                for name in names
            )
        )

    def pid(self, name):
        status = self.files.status(name)
        assert status is not None
        return status.pid

    def close(self):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.communicate()
        orphans = [status.pid for status in self.files.statuses().values()]
        eventually(lambda: not any(lives(pid) for pid in orphans))


def test_launcher_starts_workers_together_and_ends_with_their_training(job):
    launcher = job.start("--min", "1", "--max", "2")
    eventually(lambda: job.is_trained_by("w0", "w1"))
    (job.directory / "finish").touch()

    assert launcher.wait() == 0
    assert "finished" in launcher.stderr.read()


def test_resize_option_of_the_launcher_shrinks_and_grows_the_job(job):
    launcher = job.start("--min", "1", "--max", "3")
    eventually(lambda: job.is_trained_by("w0", "w1", "w2"))
    resize = [sys.executable, "-m", "runai.elastic.run", "--resize"]
    subprocess.run([*resize, "1", str(job.directory)], check=True)
    eventually(lambda: job.is_trained_by("w0"))
    subprocess.run([*resize, "2", str(job.directory)], check=True)
    eventually(lambda: job.is_trained_by("w0", "w3"))  # a new worker has a new name

    launcher.send_signal(signal.SIGTERM)
    assert launcher.wait() == SIGTERM_EXIT_CODE


@pytest.mark.parametrize("count", [0, 3], ids=["too few", "too many"])
def test_elastic_job_resize_beyond_its_bounds_is_refused(tmp_path, count):
    files = ElasticFiles(tmp_path)
    files.write_target(Target(1, ("w0", "w1"), "127.0.0.1:1", gpus=2, least=1, most=2))

    with pytest.raises(ValueError, match=f"runs with 1 to 2 workers, not with {count}"):
        JobDirectory(tmp_path).request_workers(count)


def test_elastic_job_resize_without_a_running_job_is_an_error(tmp_path, capsys):
    with pytest.raises(SystemExit) as refused:
        main(["--resize", "1", str(tmp_path)])

    assert refused.value.code == 2
    assert f"No elastic job runs in {tmp_path}" in capsys.readouterr().err


@pytest.mark.parametrize(
    "signal_number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name
)
def test_signal_to_the_launcher_pauses_the_job_and_a_second_start_resumes_it(job, signal_number):
    launcher = job.start("--min", "1", "--max", "2")
    eventually(lambda: job.is_trained_by("w0", "w1"))
    gen = job.files.target().gen
    launcher.send_signal(signal_number)

    assert launcher.wait() == SIGTERM_EXIT_CODE

    job.start("--min", "1", "--max", "2")
    eventually(lambda: job.is_trained_by("w0", "w1"))
    assert job.files.target().gen > gen


def test_launcher_replaces_a_killed_worker_while_the_survivor_trains(job):
    job.start("--min", "1", "--max", "2")
    eventually(lambda: job.is_trained_by("w0", "w1"))
    os.kill(job.pid("w0"), signal.SIGKILL)

    eventually(lambda: job.is_trained_by("w1", "w2"))


def test_launcher_does_not_replace_a_worker_stopped_by_sigterm(job):
    job.start("--min", "1", "--max", "2")
    eventually(lambda: job.is_trained_by("w0", "w1"))
    os.kill(job.pid("w1"), signal.SIGTERM)

    eventually(lambda: job.is_trained_by("w0"))


def test_script_that_fails_at_once_is_restarted_a_limited_number_of_times(job, tmp_path):
    failing_script = tmp_path / "failing_script.py"
    failing_script.write_text("raise SystemExit(7)")
    launcher = job.start("--min", "1", "--restarts", "2", script=failing_script)

    assert launcher.wait() == 7
    output = launcher.stderr.read()
    assert output.count("failed: exit code 7") == 3  # the first start and two restarts
    assert "--restarts" in output


def test_workers_of_a_killed_launcher_end_before_the_next_launcher_trains(job):
    first = job.start("--min", "1", "--max", "2")
    eventually(lambda: job.is_trained_by("w0", "w1"))
    orphans = [job.pid("w0"), job.pid("w1")]
    first.kill()
    first.wait()
    second = job.start("--min", "1", "--max", "2")
    eventually(lambda: job.is_trained_by("w0", "w1") and job.pid("w0") not in orphans)

    assert not any(lives(pid) for pid in orphans)
    assert second.poll() is None


def test_two_launchers_do_not_run_the_same_job(job):
    job.start("--min", "1")
    eventually(lambda: job.is_trained_by("w0"))
    second = job.start("--min", "1")

    assert second.wait() == 2
    assert "runs the job of" in second.stderr.read()


def test_workers_have_torchruns_environment(job, tmp_path):
    script = tmp_path / "env.py"
    script.write_text(
        "import os, pathlib, sys\n"
        "names = 'RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR'.split()\n"
        "path = pathlib.Path(os.environ['RUNAI_ELASTIC_DIR'])\n"
        "path /= os.environ['RUNAI_WORKER'] + '.env'\n"
        "path.write_text(' '.join(os.environ[name] for name in names) + str(sys.argv[1:]))\n"
        "assert int(os.environ['MASTER_PORT'])\n"
    )
    command = [sys.executable, "-m", "runai.elastic.run", "--directory", str(job.directory)]
    subprocess.run([*command, "--min", "2", str(script), "--lr", "1"], check=True)

    assert (job.directory / "w1.env").read_text() == "1 2 1 127.0.0.1['--lr', '1']"


@pytest.mark.parametrize(
    "arguments",
    [["--min", "2", "--max", "1", "x.py"], ["--min", "0", "x.py"], ["--resize", "2"], []],
    ids=" ".join,
)
def test_invalid_launcher_options_are_refused_with_an_error_message(arguments, capsys):
    with pytest.raises(SystemExit) as refused:
        main(arguments)

    assert refused.value.code == 2
    assert "error: " in capsys.readouterr().err
