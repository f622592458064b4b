"""An elastic job whose workers run as a user's Unix account, next to another user's.

Its workers are shell scripts: the protocol needs no library.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

import pytest

from labs import DEVICES, NODE, Clock, LocalLab, decision_loop, running
from runai.hub_service.clusters.local.local_cluster import open_local_cluster
from runai.hub_service.model.records import ElasticRules, ProjectSpec
from runai.hub_service.scheduler.model.quantity import milli_gpus
from runai.hub_service.wire.elastic_messages import ElasticFiles, WorkerPhase
from unix_accounts import UIDS, Accounts, accounts, as_user
from waiting import eventually_async

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to run jobs as users")

WORKER = """
set -u
name=${RUNAI_WORKER##*/}
report() {  # state
    printf '{"worker": "%s", "gen": 0, "state": "%s", "pid": %s}' "$RUNAI_WORKER" "$1" $$ \
        > "$RUNAI_ELASTIC_DIR/status/.$name"
    mv "$RUNAI_ELASTIC_DIR/status/.$name" "$RUNAI_ELASTIC_DIR/status/$name.json"
}
trap 'cat "$RUNAI_ELASTIC_DIR/target.json" > "$RUNAI_CHECKPOINT_DIR/target-seen-by-$name"' USR1
trap 'report left; exit 143' TERM
report ready
while :; do sleep 0.05; done
"""


@pytest.fixture
def unix() -> Iterator[Accounts]:
    with accounts() as unix:
        yield unix


@pytest.fixture
async def lab(unix: Accounts, tmp_path: Path) -> AsyncGenerator[LocalLab]:
    clock = Clock()
    async with (
        open_local_cluster(
            tmp_path / "data",
            DEVICES[:3],
            NODE,
            clock=clock,
            accounts=unix.directory(tmp_path / "data"),
            elastic=ElasticRules(grow_every_s=0, pays_from=None),
        ) as cluster,
        running(cluster),
    ):
        for name, user, quota in (("vision", "ana", 1), ("nlp", "pat", 2)):
            await cluster.put_project(ProjectSpec(name, quota=milli_gpus(quota), members=(user,)))
        async with decision_loop(cluster):
            yield LocalLab(cluster, clock, tmp_path)
            for record in await cluster.workloads():
                await cluster.delete(record.id, by="the test")
            await eventually_async(lambda: not cluster.index, within=60)


async def test_elastic_target_and_status_are_accessible_to_the_jobs_user_only(lab, unix):
    job = lab.job("e", command=("/bin/sh", "-c", WORKER), elastic=True, workers=3, min_workers=1)
    await lab.cluster.submit([job])
    directory = Path((await lab.cluster.workload(job.id)).checkpoint_dir).parent / "elastic"
    files = ElasticFiles(directory)

    async def trains_on(*workers: int) -> bool:
        target = files.target()
        return target is not None and target.ranks == tuple(f"{job.id}-{n}" for n in workers)

    async def are_all_ready() -> bool:
        elastic = (await lab.cluster.workload(job.id)).elastic
        return elastic is not None and [*elastic.phases.values()] == [WorkerPhase.READY] * 3

    await eventually_async(lambda: trains_on(0, 1, 2))
    await eventually_async(are_all_ready)
    record = await lab.cluster.workload(job.id)
    processes = [worker.process for worker in record.workers if worker.process is not None]
    owner = lab.job(
        "owner", project="nlp", user="pat", gpus=2, command=("/bin/sh", "-c", "sleep 1000")
    )
    await lab.cluster.submit([owner])
    await eventually_async(lambda: trains_on(0))
    received = directory.parent / "checkpoints/target-seen-by-e-0"
    await eventually_async(lambda: received.exists() and received.read_text() == _text(files))
    await lab.until(owner.id, "running")

    assert directory.is_relative_to(unix.folder / "ana")
    paths = [directory, directory / "status", files.target_path, *directory.glob("status/*.json")]
    assert {path.stat().st_uid for path in paths} == {UIDS["ana"]}
    assert files.target_path.stat().st_mode & 0o777 == 0o600
    assert len(processes) == 3
    target, status = files.target_path, directory / "status/e-0.json"
    assert as_user("ana", f"cat {target} && echo >> {status}").stdout == _text(files)
    for attempt in (f"cat {target}", f"cat {status}", f"echo > {target}", f"echo > {status}"):
        assert "Permission denied" in as_user("pat", attempt).stderr, attempt


def _text(files: ElasticFiles) -> str:
    return files.target_path.read_text()
