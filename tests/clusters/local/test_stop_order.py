"""Order of a stop: a worker's processes get SIGTERM once, in an order that lets it save."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from runai.hub_service.clusters.local.supervisor import stop_order
from runai.hub_service.clusters.local.supervisor.stop_order import StopOrder

PYTHON = f"{sys.executable} -I -S -u"

TRAINING = """
import os, signal, sys, time
place = os.environ["PLACE"]
signals = []
signal.signal(signal.SIGTERM, lambda *_: signals.append(1))
open(f"{place}/ready", "w").close()
while not signals:
    time.sleep(0.01)
    print("loss", flush=True)
for _ in range(20):  # a step's end, and its output, before the save
    time.sleep(0.01)
    print("loss", flush=True)
with open(f"{place}/saving", "w") as file:
    file.write(str(len(signals)))
os.rename(f"{place}/saving", f"{place}/signals")
print("saved", flush=True)
sys.exit(143)
"""
"""A training that saves after the step at which SIGTERM arrives, and counts its signals."""

LOADING = """
import concurrent.futures, functools, multiprocessing, os, sys
def batch(number):
    return number
if __name__ == "__main__":
    pool = concurrent.futures.ProcessPoolExecutor(2, multiprocessing.get_context(sys.argv[2]))
    pool.submit(batch, 0).result()
    def print(*_, **__):  # each step needs a batch
        os.write(1, b"%d\\n" % pool.submit(batch, 1).result())
    exec(open(sys.argv[1]).read())
"""
"""The same training with loading processes, without which no step ends."""

LAUNCHER = """
import subprocess, sys
sys.exit(subprocess.run(sys.argv[1], shell=True).returncode)
"""
"""A launcher that forwards no signal."""

HELPED = """
import subprocess, sys
subprocess.Popen(["sleep", "1000"])
exec(open(sys.argv[1]).read())
"""
"""The training with a helper that keeps its output open, and outlives it."""

TEE = "tee $PLACE/train.log"

START_SCRIPTS = {
    # -- shells and launchers --
    "program": ("sh", "exec $TRAIN"),
    "two commands": ("bash", "$TRAIN; touch $PLACE/not-run"),
    "set -e": ("bash", "set -e; $TRAIN; touch $PLACE/not-run"),
    "time": ("bash", "time $TRAIN; touch $PLACE/not-run"),
    "env": ("sh", "env A=1 $TRAIN; true"),
    "make": ("sh", "make -s -f $PLACE/Makefile plain"),
    "background and wait": ("bash", "$TRAIN & wait"),
    "launcher": ("sh", 'exec $LAUNCH "exec $TRAIN"'),
    "shell in a shell": ("bash", "sh -c '$TRAIN; true'; true"),
    # -- loading processes --
    "pool by fork": ("sh", "exec $LOADING fork"),
    "pool by spawn": ("sh", "exec $LOADING spawn"),
    "pool by forkserver": ("sh", "exec $LOADING forkserver"),
    "pool and tee": ("bash", f"$LOADING fork 2>&1 | {TEE}"),
    # -- pipes --
    "tee": ("bash", f"$TRAIN 2>&1 | {TEE}"),
    "tee in dash": ("dash", f"$TRAIN 2>&1 | {TEE}"),
    "tee by substitution": ("bash", f"exec > >({TEE}) 2>&1; $TRAIN"),
    "tee of a program": ("bash", f"$TRAIN > >({TEE}) 2>&1"),
    "grep": ("sh", f"$TRAIN 2>&1 | grep --line-buffered -v nothing | {TEE}"),
    "fed and tee": ("bash", f"cat $PLACE/endless | $TRAIN | {TEE}"),
    "shells and pipes": ("bash", f"bash -c '(sh -c \"$TRAIN; true\") | cat' | {TEE}; true"),
    "tee in make": ("sh", "make -s -f $PLACE/Makefile tee"),
    "tee in a launcher": ("sh", f'exec $LAUNCH "$TRAIN | {TEE}"'),
    "helper that keeps the pipe open": ("bash", f"$HELPED | {TEE}"),
    # -- programs that pass the signal on --
    "timeout": ("sh", "exec timeout 1h $TRAIN"),
    "trap in bash": ("bash", "trap 'kill -TERM $pid; wait $pid' TERM; $TRAIN & pid=$!; wait $pid"),
    "trap in dash": ("dash", "trap 'kill -TERM $pid; wait $pid' TERM; $TRAIN & pid=$!; wait $pid"),
    "trap, shell before the training": (
        "bash",
        "trap 'pkill -TERM -P $pid; wait $pid' TERM; bash -c '$TRAIN; true' & pid=$!; wait $pid",
    ),
    "trap in the foreground": ("bash", "trap 'echo bye' TERM; $TRAIN; exit 143"),
    "trap and tee": ("bash", f"trap 'echo bye' TERM; $TRAIN | {TEE}; exit 143"),
    "trap that passes nothing on": ("bash", "trap 'exit 143' TERM; $TRAIN & wait"),
    # -- rings --
    "coprocess": ("bash", "coproc cat; $TRAIN <&${COPROC[0]} >&${COPROC[1]}"),
}


@pytest.fixture
def training_dir(tmp_path: Path) -> Path:
    """Return the training's directory."""
    training_dir = tmp_path / "training"
    training_dir.mkdir()
    programs = {"train": TRAINING, "load": LOADING, "launch": LAUNCHER, "help": HELPED}
    for name, text in programs.items():
        (training_dir / f"{name}.py").write_text(text)
    (training_dir / "Makefile").write_text(f"plain:\n\t$$TRAIN\n\ntee:\n\t$$TRAIN 2>&1 | {TEE}\n")
    for name in ("a", "b", "endless"):
        os.mkfifo(training_dir / name)
    return training_dir


def environment_of(training_dir: Path) -> dict[str, str]:
    train = f"{PYTHON} {training_dir}/train.py"
    return {
        "PLACE": str(training_dir),
        "TRAIN": train,
        "LOADING": f"{PYTHON} {training_dir}/load.py {training_dir}/train.py",
        "LAUNCH": f"{PYTHON} {training_dir}/launch.py",
        "HELPED": f"{PYTHON} {training_dir}/help.py {training_dir}/train.py",
    }


@pytest.mark.parametrize(("shell", "script"), START_SCRIPTS.values(), ids=START_SCRIPTS)
def test_worker_stop_lets_a_training_save_under_any_shell_and_launch_script(
    start, training_dir, eventually, shell, script
):
    if not shutil.which(shell):
        pytest.skip(f"no {shell}")
    endless = os.open(training_dir / "endless", os.O_RDWR)  # a feeder that never ends by itself
    start(shell, "-c", script, environment=environment_of(training_dir), grace_seconds=600)
    eventually((training_dir / "ready").exists)

    start.stop()

    exit_status = start.final_exit()
    os.close(endless)
    assert (training_dir / "signals").read_text() == "1"
    assert exit_status.stop_requested
    assert not start.exit_file()["killed"]
    assert not (training_dir / "not-run").exists()
    if (training_dir / "train.log").exists() and "LOADING" not in script:
        assert (training_dir / "train.log").read_text().endswith("saved\n")


def test_stopped_worker_with_a_process_that_ignores_sigterm_is_recorded_as_killed(
    start, eventually
):
    stubborn = "trap '' TERM; echo ready; while :; do sleep 0.05; done"
    start("sh", "-c", f'sh -c "{stubborn}" & wait', grace_seconds=0.2)
    eventually(lambda: start.printed("ready"))

    start.stop()

    assert start.final_exit().exit_code == -signal.SIGTERM
    assert start.exit_file()["killed"]


# -- turns, by a clock of the test's own ----------------------------------------------------------

GRACE_S = 100.0

ADOPTING_PARENT = """
import ctypes, os, signal, subprocess, sys
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
for number in (signal.SIGINT, signal.SIGQUIT):  # ignored where the tests run in the background
    signal.signal(number, signal.SIG_DFL)
main = subprocess.Popen(["bash", "-c", sys.argv[1]], start_new_session=True)
print(main.pid, flush=True)
while True:
    try:
        os.wait()
    except ChildProcessError:
        signal.pause()
"""
"""A parent that adopts orphans, as the supervisor does."""

SIGNAL_COUNTER = r"""
import os, signal, sys, time
name, obeys = sys.argv[1], sys.argv[2:] != ["stubborn"]
def count(*_):
    with open(f"{os.environ['PLACE']}/{name}.signals", "a") as file:
        file.write("TERM\n")
    if obeys:
        sys.exit(0)
signal.signal(signal.SIGTERM, count)
open(f"{os.environ['PLACE']}/{name}", "w").close()
while True:
    time.sleep(100)
"""
"""A process that notes each SIGTERM under its name, and ends at the first one if it obeys."""


@dataclass
class Tree:
    """A worker's processes below a parent of their own, and a clock that the test moves."""

    folder: Path
    eventually: Callable[..., object]
    parent: subprocess.Popen[bytes] | None = None
    root: int = 0
    main: int = 0
    now: float = 0.0

    def order(self, script: str, *names: str) -> StopOrder:
        """Begin the stop of a script whose processes of these names run."""
        environment = {"PLACE": str(self.folder), "PATH": os.environ["PATH"]}
        environment["COUNT"] = f"{PYTHON} {self.folder}/count.py"
        (self.folder / "count.py").write_text(SIGNAL_COUNTER)
        parent = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", ADOPTING_PARENT, script],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        )
        self.parent, self.root = parent, parent.pid
        assert parent.stdout is not None
        self.main = int(parent.stdout.readline())
        self.eventually(lambda: all((self.folder / name).exists() for name in names))
        return StopOrder(self.root, self.main, GRACE_S, clock=lambda: self.now)

    def signals(self, name: str) -> int:
        """Return how many SIGTERMs a process has noted."""
        path = self.folder / f"{name}.signals"
        return len(path.read_text().split()) if path.exists() else 0

    def poll_until(self, order: StopOrder, **signals: int) -> None:
        """Send what is due until these processes have noted so many signals."""

        def noted() -> bool:
            order.send_due()
            return {name: self.signals(name) for name in signals} == signals

        self.eventually(noted)


@pytest.fixture
def tree(tmp_path: Path, eventually: Callable[..., object]) -> Generator[Tree]:
    tree = Tree(tmp_path, eventually)
    yield tree
    if tree.parent is not None:
        for process in running_processes(tree):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        tree.parent.kill()
        tree.parent.communicate()


STUBBORN_FIRST_AND_LATER = "$COUNT later & exec $COUNT first stubborn"


def test_later_processes_of_a_stop_get_sigterm_in_the_last_quarter_of_the_grace(tree):
    order = tree.order(STUBBORN_FIRST_AND_LATER, "first", "later")
    tree.poll_until(order, first=1, later=0)

    tree.now = 0.74 * GRACE_S
    tree.poll_until(order, first=1, later=0)

    tree.now = 0.76 * GRACE_S
    tree.poll_until(order, first=1, later=1)


def test_later_processes_of_a_stop_get_sigterm_when_all_first_ones_have_ended(tree):
    order = tree.order("$COUNT later & exec $COUNT first", "first", "later")

    tree.poll_until(order, first=1, later=1)


def test_stopped_worker_processes_get_sigterm_only_once(tree):
    order = tree.order("$COUNT later stubborn & exec $COUNT first stubborn", "first", "later")
    tree.now = GRACE_S
    tree.poll_until(order, first=1, later=1)

    for _ in range(5):
        order.send_due()

    assert tree.signals("first") == 1
    assert tree.signals("later") == 1


def test_pipe_reader_gets_sigterm_only_after_its_writers_or_at_the_end_of_the_grace(tree):
    order = tree.order("$COUNT first stubborn | $COUNT reader", "first", "reader")
    tree.now = 0.99 * GRACE_S

    tree.poll_until(order, first=1, reader=0)

    for process in running_processes(tree, "first"):
        process.kill()
    tree.poll_until(order, first=1, reader=1)


def test_pipe_reader_without_writers_gets_sigterm_late_unless_it_handles_sigterm(tree):
    script = "sleep 1000 < <(:) & $COUNT handling < <(:) & exec $COUNT first"
    order = tree.order(script, "first", "handling")
    tree.poll_until(order, first=1, handling=1)

    order.send_due()
    assert running_processes(tree, "sleep")

    tree.now = 2.0  # far from the end of the grace
    order.send_due()
    tree.eventually(lambda: not running_processes(tree, "sleep"))


def test_pipe_readers_in_a_ring_get_sigterm_in_the_last_quarter_of_the_grace(tree):
    for name in ("a.fifo", "b.fifo"):
        os.mkfifo(tree.folder / name)
    script = (
        "cd $PLACE; $COUNT left <>a.fifo >b.fifo & $COUNT right <b.fifo >a.fifo & "
        "exec $COUNT first stubborn"
    )
    order = tree.order(script, "first", "left", "right")
    tree.poll_until(order, first=1, left=0, right=0)

    tree.now = 0.76 * GRACE_S

    tree.poll_until(order, first=1, left=1, right=1)


def test_pipe_reader_behind_a_ring_of_pipes_gets_sigterm_after_the_ring(tree):
    os.mkfifo(tree.folder / "a.fifo")
    ring = "cd $PLACE; $COUNT ring stubborn <>a.fifo 3<>a.fifo | $COUNT reader & exec $COUNT first"
    order = tree.order(ring, "first", "ring", "reader")

    tree.poll_until(order, first=1, ring=1, reader=0)


def test_process_started_during_a_stop_gets_sigterm_only_after_its_parent_ended(tree):
    trap = "trap '$COUNT saver' TERM; $COUNT first; wait"
    order = tree.order(trap, "first")
    tree.poll_until(order, first=1)
    tree.eventually((tree.folder / "saver").exists)

    tree.now = 0.99 * GRACE_S
    order.send_due()
    assert tree.signals("saver") == 0

    os.kill(tree.main, signal.SIGKILL)
    tree.poll_until(order, saver=1)


def test_supervisor_process_spared_from_a_stop_gets_no_sigterm(tree):
    order = tree.order("exec $COUNT first", "first")

    for _ in range(3):
        order.send_due(spared=tree.main)

    assert tree.signals("first") == 0


def test_worker_process_tree_is_complete_on_kernels_without_lists_of_children(tree, monkeypatch):
    order = tree.order("bash -c '$COUNT first; true'; true", "first")
    expected_pids = stop_order.processes_below(tree.root)
    monkeypatch.setattr(os.path, "exists", lambda path: not path.endswith("/children"))

    assert stop_order.processes_below(tree.root) == expected_pids
    assert len(expected_pids) == 3  # two shells and the counter
    tree.poll_until(order, first=1)


def running_processes(tree: Tree, word: str = "") -> list[psutil.Process]:
    """Return the running processes of which a word of the command line is this one."""
    processes = []
    for process in psutil.Process(tree.root).children(recursive=True):
        with suppress(psutil.Error):
            if not word or word in process.cmdline():
                processes.append(process)
    return processes
