"""A cluster of one elastic job for tests: real workers, resized on the test's command.

Workers are forked from a server that has imported PyTorch (see `ranks`); they run
`recorded_training`. Nothing depends on time: the training waits at `allow_updates`, the test waits
for conditions.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from collections.abc import Mapping
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from ports import free_port
from ranks import preloaded
from runai.hub_service.wire.elastic_messages import (
    ElasticFiles,
    Reason,
    Target,
    WorkerPhase,
    WorkerStatus,
)
from training_records import allow
from waiting import eventually

_PATIENCE_S = 250.0


class Cluster:
    """The workers of one job and its generations; `close` kills the remaining workers."""

    def __init__(self, directory: Path, epochs: int = 3, **training: Any) -> None:
        self.directory, self.files = directory, ElasticFiles(directory)
        self._epochs, self._training = epochs, training
        self._gen = 0
        self._processes: dict[str, ForkServerProcess] = {}

    def start(self, *names: str, **environ: str) -> None:
        """Start workers; none of them trains before `set_target`."""
        for name in names:
            settings = {
                "RUNAI_ELASTIC_DIR": str(self.directory),
                "RUNAI_WORKER": name,
                "RUNAI_CHECKPOINT_DIR": str(self.directory / "checkpoints"),
                **environ,
            }
            self._processes[name] = preloaded.Process(
                target=_work, args=(settings, str(self.directory), self._epochs, self._training)
            )
            self._processes[name].start()

    def wait_until_ready(self, *names: str) -> None:
        """Wait until workers have built their models."""
        for name in names:
            self.until(lambda name=name: self._status(name).state is WorkerPhase.READY)

    def set_target(self, *ranks: str, reason: Reason = Reason.EXPAND) -> None:
        """Write a target: the workers that train from now on."""
        self._gen += 1
        store = f"127.0.0.1:{free_port()}"
        self.files.write_target(
            Target(self._gen, ranks, store, gpus=len(ranks), least=1, most=4, reason=reason)
        )

    def wait_until_training(self, *names: str) -> None:
        """Wait until workers train in the latest generation."""
        for name in names:
            self.until(
                lambda name=name: (
                    self._status(name).gen == self._gen
                    and self._status(name).state is WorkerPhase.RUNNING
                )
            )

    def allow_updates(self, updates: int) -> None:
        """Allow the training `updates` updates in total."""
        allow(self.directory, updates)

    def wait_at_update(self, update: int, *names: str) -> None:
        """Wait until workers have begun update `update`, the first that is not allowed."""

        def last(name: str) -> int:
            path = self.directory / "records" / f"{name}.jsonl"
            lines = path.read_text().splitlines() if path.exists() else []
            return int(json.loads(lines[-1])["update"]) if lines else -1

        for name in names:
            self.until(lambda name=name: last(name) == update)

    def send_signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a worker."""
        process_id = self._processes[name].pid
        assert process_id is not None
        os.kill(process_id, number)

    def exit_code(self, name: str) -> int | None:
        """Wait for a worker's end; return its exit code."""
        self._processes[name].join(_PATIENCE_S)
        return self._processes[name].exitcode

    def until(self, condition: Any) -> None:
        """Wait for a condition; raise if a worker fails meanwhile."""

        def seen() -> bool:
            failed = {n: p.exitcode for n, p in self._processes.items() if p.exitcode == 1}
            if failed:
                raise RuntimeError(f"workers failed: {failed}")
            return bool(condition())

        eventually(seen, within=_PATIENCE_S)

    def close(self) -> None:
        """Kill the remaining workers."""
        for process in self._processes.values():
            process.kill()
            process.join()

    def _status(self, name: str) -> WorkerStatus:
        status = self.files.status(name)
        assert status is not None, f"{name} told nothing yet"
        return status


def _work(
    environ: Mapping[str, str], directory: str, epochs: int, training: Mapping[str, Any]
) -> None:
    from datetime import timedelta

    from elastic_trainings import Training
    from recorded_training import train
    from runai.elastic.torch import group

    # A survivor that notices a loss only by this timeout is a failed test, not a slow one.
    group.PEER_TIMEOUT = timedelta(hours=1)
    multiprocessing.current_process().name = environ["RUNAI_WORKER"]
    for name in ("WORLD_SIZE", "RANK"):
        os.environ.pop(name, None)
    os.environ.update(environ)
    every = int(environ["EVERY"]) if "EVERY" in environ else None
    train(Path(directory), epochs, Training(**training), every)
