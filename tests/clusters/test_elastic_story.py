"""An elastic training on a full cluster, grown, shrunk for an owner, paused: the real thing.

Real processes train with `runai.elastic.torch` on simulated GPUs, the core decides, the cluster of
this machine does it. Nothing is timed: the training may make as many updates as the test allows.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from allowed_training import allow, allow_more
from deciding import decided
from labs import DEVICES, NODE, Clock, LocalLab, running
from runai.elastic.checkpoint import latest
from runai.hub_service.clusters.elastic_state import ElasticRules
from runai.hub_service.clusters.local.cluster import LocalCluster
from runai.hub_service.clusters.records import ProjectSpec, WorkloadRecord, WorkloadSpec
from runai.hub_service.scheduler.quantity import milli_gpus
from training_records import expected_history, read_records, reconcile
from waiting import eventually_async

pytestmark = [pytest.mark.slow, pytest.mark.torch, pytest.mark.timeout(600)]

EPOCHS = 20
PATIENCE_S = 250
PROGRAM = """
import sys
from pathlib import Path
from elastic_trainings import Training
from recorded_training import train
train(Path(sys.argv[1]), int(sys.argv[2]), Training())
"""


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncGenerator[LocalLab]:
    clock = Clock()
    (tmp_path / "orders").mkdir()
    at_once = ElasticRules(
        grow_every_s=0, resize_cost_s=0, pays_from=None
    )  # its speed is the test's
    async with (
        LocalCluster.open(
            tmp_path / "data", DEVICES[:3], NODE, clock=clock, elastic=at_once
        ) as cluster,
        running(cluster),
    ):
        for name, user, quota in (("vision", "ana", 1), ("nlp", "pat", 2)):
            await cluster.put_project(ProjectSpec(name, quota=milli_gpus(quota), members=(user,)))
        lab = LocalLab(cluster, clock, tmp_path / "orders")
        async with decided(cluster):
            try:
                yield lab
            finally:
                for record in await cluster.workloads():
                    await cluster.delete(record.id, by="the test")
                await eventually_async(lambda: not cluster._rows, within=PATIENCE_S)


class Training:
    """An elastic job that trains as far as it is allowed."""

    def __init__(self, lab: LocalLab, directory: Path, **fields: Any) -> None:
        directory.mkdir()
        self._lab, self.directory = lab, directory
        allow(directory, 0)
        tests = str(Path(__file__).parents[1])
        self.spec: WorkloadSpec = lab.job(
            "e",
            command=(sys.executable, "-u", "-c", PROGRAM, str(directory), str(EPOCHS)),
            env={"OMP_NUM_THREADS": "1", "PYTHONPATH": tests},
            elastic=True,
            min_workers=1,
            **fields,
        )

    async def trains_on(self, ranks: int) -> None:
        """Wait until so many ranks train, letting those before them end their update."""

        async def so_many() -> bool:
            record = await self._lab.cluster.workload(self.spec.id)
            if record.state.finished:
                raise RuntimeError(await self._said())
            target = record.elastic.target if record.elastic is not None else None
            if target is None or len(target.ranks) != ranks:
                return False
            if target.gen in {record["gen"] for record in read_records(self.directory)}:
                return True
            allow_more(self.directory)
            return False

        await eventually_async(so_many, within=PATIENCE_S)

    async def has_started_on(self, gpus: int) -> None:
        """Wait until its only worker trains on so many GPUs; who is told to stop may."""

        async def so_many() -> bool:
            record = await self._lab.cluster.workload(self.spec.id)
            if record.state.finished:
                raise RuntimeError(await self._said())
            (worker,) = record.workers
            if worker.state == "stopping":
                allow_more(self.directory)
                return False
            target = record.elastic.target if record.elastic is not None else None
            if target is None or worker.state != "running" or len(worker.devices) != gpus:
                return False
            return target.gen in {record["gen"] for record in read_records(self.directory)}

        await eventually_async(so_many, within=PATIENCE_S)

    async def until(self, state: str) -> WorkloadRecord:
        """Wait until its job is in a state, letting it train as long as it does."""

        async def is_there() -> bool:
            record = await self._lab.cluster.workload(self.spec.id)
            allow_more(self.directory)
            return record.state == state

        await eventually_async(is_there, within=PATIENCE_S)
        return await self._lab.cluster.workload(self.spec.id)

    async def _said(self) -> str:
        lines = [str(line) for line in await self._lab.cluster.history(self.spec.id)]
        logs = self._lab.cluster.logs(self.spec.id, worker=None, tail=None, follow=False)
        return "\n".join([*lines, *[chunk.lines.decode() async for chunk in logs]])

    def to_the_end(self) -> None:
        """Let it finish."""
        allow(self.directory, 10**9)

    async def has_saved(self) -> bool:
        """Tell whether there is a checkpoint."""
        record = await self._lab.cluster.workload(self.spec.id)
        return latest(record.checkpoint_dir) is not None


async def test_it_starts_small_grows_shrinks_for_an_owner_pauses_and_loses_nothing(lab, tmp_path):
    other = lab.job("other", project="nlp", user="pat", gpus=2, on_term=143)
    await lab.cluster.submit([other])
    await lab.until(other.id, "running")
    training = Training(lab, tmp_path / "training", workers=3)
    await lab.cluster.submit([training.spec])
    await training.trains_on(1)

    await lab.end(other, 0)
    await training.trains_on(3)

    owner = lab.job("owner", project="nlp", user="pat", gpus=1, on_term=143)
    await lab.cluster.submit([owner])
    await training.trains_on(2)
    await lab.until(owner.id, "running")
    assert not await training.has_saved(), "nobody waited for one"

    await lab.cluster.suspend(training.spec.id, by="ana")
    await training.until("suspended")
    assert await training.has_saved()
    await lab.cluster.resume(training.spec.id, by="ana")
    await training.trains_on(2)
    training.to_the_end()
    done = await training.until("succeeded")

    assert (done.failures, done.pauses) == (0, ())
    records = read_records(training.directory)
    assert reconcile(records) == expected_history(EPOCHS)
    assert {1, 2, 3} <= {record["ranks"] for record in records}


async def test_one_process_starts_again_on_more_and_on_fewer_gpus_and_loses_nothing(lab, tmp_path):
    other = lab.job("other", project="nlp", user="pat", gpus=2, on_term=143)
    await lab.cluster.submit([other])
    await lab.until(other.id, "running")
    training = Training(lab, tmp_path / "training", gpus_max=milli_gpus(3))
    await lab.cluster.submit([training.spec])
    await training.has_started_on(1)

    await lab.end(other, 0)
    await training.has_started_on(3)
    assert await training.has_saved()

    owner = lab.job("owner", project="nlp", user="pat", gpus=1, on_term=143)
    await lab.cluster.submit([owner])
    await training.has_started_on(2)
    await lab.until(owner.id, "running")
    training.to_the_end()
    done = await training.until("succeeded")

    assert (done.failures, done.pauses) == (0, ())
    assert reconcile(read_records(training.directory)) == expected_history(EPOCHS)
