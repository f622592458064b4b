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

SAVING = """
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
"""The same with loading processes, without which no step ends."""

LAUNCHING = """
import subprocess, sys
sys.exit(subprocess.run(sys.argv[1], shell=True).returncode)
"""
"""A launcher that forwards no signal."""

HELPING = """
import subprocess, sys
subprocess.Popen(["sleep", "1000"])
exec(open(sys.argv[1]).read())
"""
"""The training with a helper that keeps its output open, and outlives it."""

TEE = "tee $PLACE/train.log"

FORMS = {
    # -- right before, and as soon --
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
    "helper that keeps the pipe": ("bash", f"$HELPED | {TEE}"),
    # -- programs that pass the signal on --
    "timeout": ("sh", "exec timeout 1h $TRAIN"),
    "trap in bash": ("bash", "trap 'kill -TERM $pid; wait $pid' TERM; $TRAIN & pid=$!; wait $pid"),
    "trap in dash": ("dash", "trap 'kill -TERM $pid; wait $pid' TERM; $TRAIN & pid=$!; wait $pid"),
    "trap, shell behind": (
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
def place(tmp_path: Path) -> Path:
    """Return the training's directory."""
    place = tmp_path / "place"
    place.mkdir()
    programs = {"train": SAVING, "load": LOADING, "launch": LAUNCHING, "help": HELPING}
    for name, text in programs.items():
        (place / f"{name}.py").write_text(text)
    (place / "Makefile").write_text(f"plain:\n\t$$TRAIN\n\ntee:\n\t$$TRAIN 2>&1 | {TEE}\n")
    for name in ("a", "b", "endless"):
        os.mkfifo(place / name)
    return place


def environment_of(place: Path) -> dict[str, str]:
    train = f"{PYTHON} {place}/train.py"
    return {
        "PLACE": str(place),
        "TRAIN": train,
        "LOADING": f"{PYTHON} {place}/load.py {place}/train.py",
        "LAUNCH": f"{PYTHON} {place}/launch.py",
        "HELPED": f"{PYTHON} {place}/help.py {place}/train.py",
    }


@pytest.mark.parametrize(("shell", "script"), FORMS.values(), ids=FORMS)
def test_worker_stop_lets_a_training_save_under_any_shell_and_launch_script(
    start, place, eventually, shell, script
):
    if not shutil.which(shell):
        pytest.skip(f"no {shell}")
    endless = os.open(place / "endless", os.O_RDWR)  # a feeder that never ends by itself
    start(shell, "-c", script, environment=environment_of(place), grace_seconds=600)
    eventually((place / "ready").exists)

    start.stop()

    ending = start.final_exit()
    os.close(endless)
    assert (place / "signals").read_text() == "1"
    assert ending.stop_requested
    assert not start.exit_file()["killed"]
    assert not (place / "not-run").exists()
    if (place / "train.log").exists() and "LOADING" not in script:
        assert (place / "train.log").read_text().endswith("saved\n")


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

ADOPTING = """
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

COUNTING = r"""
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

    place: Path
    eventually: Callable[..., object]
    parent: subprocess.Popen[bytes] | None = None
    root: int = 0
    main: int = 0
    now: float = 0.0

    def order(self, script: str, *names: str) -> StopOrder:
        """Begin the stop of a script whose processes of these names run."""
        environment = {"PLACE": str(self.place), "PATH": os.environ["PATH"]}
        environment["COUNT"] = f"{PYTHON} {self.place}/count.py"
        (self.place / "count.py").write_text(COUNTING)
        parent = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", ADOPTING, script],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        )
        self.parent, self.root = parent, parent.pid
        assert parent.stdout is not None
        self.main = int(parent.stdout.readline())
        self.eventually(lambda: all((self.place / name).exists() for name in names))
        return StopOrder(self.root, self.main, GRACE_S, clock=lambda: self.now)

    def signals(self, name: str) -> int:
        """Return how many SIGTERMs a process has noted."""
        path = self.place / f"{name}.signals"
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


REST_WAITS = "$COUNT rest & exec $COUNT first stubborn"


def test_later_processes_of_a_stop_get_sigterm_in_the_last_quarter_of_the_grace(tree):
    order = tree.order(REST_WAITS, "first", "rest")
    tree.poll_until(order, first=1, rest=0)

    tree.now = 0.74 * GRACE_S
    tree.poll_until(order, first=1, rest=0)

    tree.now = 0.76 * GRACE_S
    tree.poll_until(order, first=1, rest=1)


def test_later_processes_of_a_stop_get_sigterm_when_all_first_ones_have_ended(tree):
    order = tree.order("$COUNT rest & exec $COUNT first", "first", "rest")

    tree.poll_until(order, first=1, rest=1)


def test_stopped_worker_processes_get_sigterm_only_once(tree):
    order = tree.order("$COUNT rest stubborn & exec $COUNT first stubborn", "first", "rest")
    tree.now = GRACE_S
    tree.poll_until(order, first=1, rest=1)

    for _ in range(5):
        order.send_due()

    assert (tree.signals("first"), tree.signals("rest")) == (1, 1)


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

    tree.now = 2.0
    order.send_due()
    tree.eventually(lambda: not running_processes(tree, "sleep"))


def test_pipe_readers_in_a_ring_get_sigterm_in_the_last_quarter_of_the_grace(tree):
    for name in ("a.fifo", "b.fifo"):
        os.mkfifo(tree.place / name)
    ring = (
        "cd $PLACE; $COUNT one <>a.fifo >b.fifo & $COUNT other <b.fifo >a.fifo & "
        "exec $COUNT first stubborn"
    )
    order = tree.order(ring, "first", "one", "other")
    tree.poll_until(order, first=1, one=0, other=0)

    tree.now = 0.76 * GRACE_S

    tree.poll_until(order, first=1, one=1, other=1)


def test_pipe_reader_behind_a_ring_of_pipes_gets_sigterm_after_the_ring(tree):
    os.mkfifo(tree.place / "a.fifo")
    ring = "cd $PLACE; $COUNT one stubborn <>a.fifo 3<>a.fifo | $COUNT reader & exec $COUNT first"
    order = tree.order(ring, "first", "one", "reader")

    tree.poll_until(order, first=1, one=1, reader=0)


def test_process_started_during_a_stop_gets_sigterm_only_after_its_parent_ended(tree):
    trap = "trap '$COUNT saver' TERM; $COUNT first; wait"
    order = tree.order(trap, "first")
    tree.poll_until(order, first=1)
    tree.eventually((tree.place / "saver").exists)

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
    fast = stop_order.processes_below(tree.root)
    monkeypatch.setattr(os.path, "exists", lambda path: not path.endswith("/children"))

    assert stop_order.processes_below(tree.root) == fast
    assert len(fast) == 3
    tree.poll_until(order, first=1)


def running_processes(tree: Tree, word: str = "") -> list[psutil.Process]:
    """Return the running processes of which a word of the command line is this one."""
    processes = []
    for process in psutil.Process(tree.root).children(recursive=True):
        with suppress(psutil.Error):
            if not word or word in process.cmdline():
                processes.append(process)
    return processes
