"""A training under the launcher, resized, paused and killed at random, loses nothing."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ranks import run_ranks
from runai.elastic.job_directory import JobDirectory
from runai.hub_service.wire.elastic_messages import WorkerPhase
from waiting import eventually

pytestmark = [pytest.mark.torch, pytest.mark.timeout(3600)]

SCRIPT = Path(__file__).parents[1] / "recorded_training.py"
PATIENCE_S = 300.0
EACH_EVENT = ["resize", "kill a worker", "pause", "resize", "kill the launcher", "kill all workers"]


class _Chaos:
    """A training and its random events; it makes only the updates that each event needs."""

    def __init__(
        self, directory: Path, max_workers: int, epochs: int, mode: str, seed: int
    ) -> None:
        self.job = JobDirectory(directory)
        directory.mkdir()
        self._random = random.Random(seed)
        self._max_workers, self._target_size, self._allowed = max_workers, max_workers, 0
        self._arguments = [str(SCRIPT), str(directory), str(epochs), mode]
        self._allow(1)
        self._launch()
        self._settle()

    def inject(self, event: str) -> None:
        """Train some updates, then inject `event`."""
        self._allow(self._random.randint(1, 3))
        self._until(self._is_at_limit)
        if event == "resize":
            sizes = [size for size in range(1, self._max_workers + 1) if size != self._target_size]
            self._target_size = self._random.choice(sizes)
            self.job.request_workers(self._target_size)
        elif event == "kill a worker":
            self._kill(self._random.choice(self._ranks()))
        elif event == "kill all workers":
            for worker in self._ranks():
                self._kill(worker)
        else:
            number = signal.SIGTERM if event == "pause" else signal.SIGKILL
            self._launcher.send_signal(number)
            self._until(self._launcher_has_exited)
            assert self._launcher.wait() == (143 if event == "pause" else -signal.SIGKILL)
            self._launch()
        self._settle()

    def finish(self) -> None:
        """Allow the training to finish."""
        self._allow(10**6)
        assert self._launcher.wait(PATIENCE_S) == 0

    def close(self) -> None:
        """Kill the remaining processes."""
        self._launcher.kill()
        self._launcher.wait()
        for status in self.job.files.statuses().values():
            try:
                os.killpg(status.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue

    def _launch(self) -> None:
        self._target_size = self._max_workers
        target = self.job.files.target()
        self._previous_gen = -1 if target is None else target.gen
        options = ["--min", "1", "--max", str(self._max_workers), "--directory", str(self.job.path)]
        self._launcher = subprocess.Popen(
            [sys.executable, "-m", "runai.elastic.run", *options, *self._arguments],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )

    def _launcher_has_exited(self) -> bool:
        """Return True if the launcher has ended.

        Workers that leave at the end of an update get the next update for that.
        """
        if self._launcher.poll() is None and self._is_at_limit():
            self._allow(1)
        return self._launcher.poll() is not None

    def _settle(self) -> None:
        """Wait until the target number of workers trains; allow the updates needed for that."""

        def settled() -> bool:
            assert self._launcher.poll() is None, "the launcher ended"
            target, statuses = self.job.files.target(), self.job.files.statuses()
            if target is None or len(target.ranks) != self._target_size:
                # Workers of a lost launcher notice that at the end of an update, too.
                is_stale = target is not None and target.gen <= self._previous_gen
                needs_update = is_stale or (target is not None and self._is_behind(target.gen))
            else:
                phases = {statuses[name].state for name in target.ranks if name in statuses}
                gens = {statuses[name].gen for name in target.ranks if name in statuses}
                if phases == {WorkerPhase.RUNNING} and gens == {target.gen}:
                    return True
                needs_update = self._is_behind(target.gen)
            if needs_update and self._is_at_limit():
                self._allow(1)
            return False

        self._until(settled)

    def _is_behind(self, gen: int) -> bool:
        """Return True if the training must end an update to notice generation `gen`."""
        from training_records import read_records

        return max((record["gen"] for record in read_records(self.job.path)), default=gen) < gen

    def _is_at_limit(self) -> bool:
        from training_records import read_records

        records = read_records(self.job.path)
        newest = max((record["gen"] for record in records), default=-1)
        return any(r["gen"] == newest and r["update"] >= self._allowed for r in records)

    def _ranks(self) -> tuple[str, ...]:
        target = self.job.files.target()
        assert target is not None
        return target.ranks

    def _kill(self, worker: str) -> None:
        status = self.job.files.status(worker)
        assert status is not None
        os.kill(status.pid, signal.SIGKILL)

    def _allow(self, more: int) -> None:
        self._allowed += more
        part = self.job.path / ".allowed"
        part.write_text(str(self._allowed))
        part.replace(self.job.path / "allowed")

    def _until(self, condition) -> None:
        eventually(condition, within=PATIENCE_S)


def _train_with_events(events, mode, max_workers, seed, tmp_path):
    from elastic_trainings import Training
    from recorded_training import train_calmly
    from training_records import expected_history, read_records, reconcile

    epochs = len(events) * 2 + 2
    training = Training(bitwise=mode == "bitwise", dropout=0.3 if mode == "bitwise" else 0.0)
    (tmp_path / "calm").mkdir()
    run_ranks(train_calmly, 1, tmp_path / "store", str(tmp_path / "calm"), epochs, training)
    chaos = _Chaos(tmp_path / "chaos", max_workers, epochs, mode, seed)
    try:
        for event in events:
            chaos.inject(event)
        chaos.finish()
    finally:
        chaos.close()

    assert reconcile(read_records(chaos.job.path)) == expected_history(epochs)
    with (
        np.load(tmp_path / "calm" / "weights.npz") as calm,
        np.load(chaos.job.path / "weights.npz") as disturbed,
    ):
        return {name: (calm[name], disturbed[name]) for name in calm.files}


def _assert_same(weights, mode):
    if mode == "bitwise":
        assert all(np.array_equal(calm, disturbed) for calm, disturbed in weights.values())
    else:
        assert max(abs(calm - disturbed).max() for calm, disturbed in weights.values()) < 1e-6


def test_training_with_resizes_pauses_and_kills_uses_each_sample_once(tmp_path):
    weights = _train_with_events(EACH_EVENT, "exact", max_workers=2, seed=0, tmp_path=tmp_path)

    _assert_same(weights, "exact")


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["exact", "bitwise"])
def test_training_with_thirty_random_disruptions_uses_each_sample_once(mode, tmp_path):
    weighted_events = ["resize"] * 4 + ["kill a worker"] * 3 + EACH_EVENT
    generator = random.Random(6)
    events = [generator.choice(weighted_events) for _ in range(30 - len(EACH_EVENT))] + EACH_EVENT
    generator.shuffle(events)

    weights = _train_with_events(events, mode, max_workers=3, seed=6, tmp_path=tmp_path)
    _assert_same(weights, mode)
