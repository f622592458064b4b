"""A submitted job's output, read from the kubelets, also across a pause and a resume."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from control_plane.kubelet import Kubelet
from kubernetes_lab import kubernetes_lab
from labs import plan, start, stop
from runai.hub_service.model.cluster import MAX_LINE_BYTES
from runai.hub_service.wire.errors import Conflict
from runai.hub_service.wire.program_schemas import MissingOutput
from waiting import eventually_async

pytestmark = pytest.mark.kubernetes


@pytest.fixture
def kubelet():
    with Kubelet() as started:
        yield started


@pytest.fixture
async def lab(plane, kubelet):
    async with kubernetes_lab(plane, kubelet) as made:
        yield made


def pod_name(lab, worker: int = 0) -> str:
    found = [p["metadata"]["name"] for p in lab.around.namespace.pods("vision-exp")]
    return str(next(name for name in found if f"-exp-{worker}-" in name))


async def read_logs(lab, workload: str = "vision/exp", **options) -> list[tuple[int, int, Any]]:
    options = {"worker": None, "tail": None, "follow": False} | options
    chunks = [c async for c in lab.cluster.logs(workload, **options)]
    return [(c.worker, c.attempt, c.lines or c.missing) for c in chunks]


async def test_job_logs_return_the_lines_of_each_worker_pod(lab, kubelet):
    await lab.started(lab.job(workers=2))
    for worker in (0, 1):
        kubelet.write(pod_name(lab, worker), f"{worker} one", f"{worker} two")

    async def both_are_written() -> bool:  # each entry: worker, start, lines
        return await read_logs(lab) == [(0, 1, b"0 one\n0 two\n"), (1, 1, b"1 one\n1 two\n")]

    await eventually_async(both_are_written)
    assert await read_logs(lab, worker=1, tail=1) == [(1, 1, b"1 two\n")]


async def test_array_element_has_the_logs_and_history_of_its_own_pod(lab, kubelet):
    await lab.cluster.submit([lab.job(array=3)])
    await lab.cluster.observe()
    await lab.cluster.apply(plan(start("vision/exp-0", 0), start("vision/exp-1", 1)))
    for index in (0, 1):
        await lab.until(f"vision/exp-{index}", "running")
        kubelet.write(pod_name(lab, index), f"element {index}")

    async def both_are_written() -> bool:
        written = [await read_logs(lab, f"vision/exp-{index}", worker=0) for index in (0, 1)]
        return written == [[(0, 1, b"element 0\n")], [(0, 1, b"element 1\n")]]

    async def has_history() -> bool:
        history = await lab.cluster.history("vision/exp-1")
        return [event.kind for event in history] == ["queued", "running"]

    await eventually_async(both_are_written)
    assert await read_logs(lab, "vision/exp-2") == []
    with pytest.raises(Conflict, match="is an array of 3 jobs"):
        await read_logs(lab)
    await eventually_async(has_history)
    with pytest.raises(Conflict, match="has its environment by itself"):
        await lab.cluster.environment("vision/exp-1")


async def test_waiting_job_has_no_log_output(lab):
    await lab.cluster.submit([lab.job()])

    assert await read_logs(lab) == []


async def test_log_follower_reads_across_a_pause_until_the_end(lab, kubelet):
    spec = lab.job()
    await lab.started(spec)
    first = pod_name(lab)
    kubelet.write(first, "epoch 1")
    lines: list[tuple[int, bytes]] = []

    async def follow() -> None:
        chunks = lab.cluster.logs(spec.id, worker=None, tail=None, follow=True)
        async for chunk in chunks:
            lines.append((chunk.attempt, chunk.lines))  # noqa: PERF401  as they come

    following = asyncio.create_task(follow())
    await eventually_async(lambda: lines == [(1, b"epoch 1\n")])
    kubelet.write(first, "epoch 2")
    await eventually_async(lambda: len(lines) == 2)
    await lab.cluster.apply(plan(stop(spec.id)))
    kubelet.close(first)
    await lab.until(spec.id, "paused")
    await lab.cluster.apply(plan(start(spec.id, 1)))
    await lab.until(spec.id, "running")
    second = pod_name(lab)
    kubelet.write(second, "epoch 3")
    await eventually_async(lambda: len(lines) == 3)
    kubelet.close(second)
    await lab.end(spec, 0)
    await lab.until(spec.id, "succeeded")
    async with asyncio.timeout(90):
        await following

    assert lines == [(1, b"epoch 1\n"), (1, b"epoch 2\n"), (2, b"epoch 3\n")]


async def test_log_output_of_an_earlier_start_is_missing_once_its_pod_is_deleted(lab, kubelet):
    spec = lab.job()
    missing_first_start = (0, 1, MissingOutput())  # worker, start, lines
    await lab.cluster.submit([spec])
    assert await read_logs(lab) == []
    await lab.cluster.observe()
    await lab.cluster.apply(plan(start(spec.id, 0)))
    await lab.until(spec.id, "running")
    assert await read_logs(lab) == []
    kubelet.write(pod_name(lab), "epoch 1")

    async def is_written() -> bool:
        return await read_logs(lab) == [(0, 1, b"epoch 1\n")]

    await eventually_async(is_written)

    first_pod = pod_name(lab)
    await lab.cluster.apply(plan(stop(spec.id)))
    kubelet.close(first_pod)  # it may be deleted already
    await lab.until(spec.id, "paused")

    async def is_missing() -> bool:  # the pod may exist a moment longer than the job runs
        return await read_logs(lab) == [missing_first_start]

    await eventually_async(is_missing)
    assert await read_logs(lab, tail=5) == [missing_first_start]
    assert await read_logs(lab, tail=0) == []
    await lab.cluster.apply(plan(start(spec.id, 1)))
    await lab.until(spec.id, "running")
    kubelet.write(pod_name(lab), "epoch 2")

    async def second_start_is_written() -> bool:
        return await read_logs(lab) == [(0, 2, MissingOutput()), (0, 2, b"epoch 2\n")]

    await eventually_async(second_start_is_written)
    assert await read_logs(lab, tail=1) == [(0, 2, b"epoch 2\n")]
    assert await read_logs(lab, tail=2) == [(0, 2, MissingOutput()), (0, 2, b"epoch 2\n")]
    following = lab.cluster.logs(spec.id, worker=None, tail=None, follow=True)
    assert [(await anext(following)).missing for _ in range(2)] == [MissingOutput(), None]
    await following.aclose()


async def test_log_follower_gets_parts_of_a_line_that_the_kubelet_has_not_ended(lab, kubelet):
    spec = lab.job()
    await lab.started(spec)
    following = lab.cluster.logs(spec.id, worker=None, tail=None, follow=True, parts=True)
    reading = asyncio.ensure_future(anext(following))
    kubelet.write(pod_name(lab), "1 %\r", end="")
    first = await reading
    kubelet.write(pod_name(lab), "2 %")
    second = await anext(following)
    await following.aclose()

    assert (first.lines, first.is_part) == (b"1 %\r", True)
    assert (second.lines, second.is_part) == (b"2 %\n", False)


async def test_log_line_of_megabytes_is_read_in_pieces(lab, kubelet):
    """The client's own line reader would reject it, and with it everything after it."""
    await lab.started(lab.job())
    kubelet.write(pod_name(lab), "x" * 5_000_000, "the end")

    async def is_complete() -> bool:
        return b"".join(lines for _, _, lines in await read_logs(lab)).endswith(b"the end\n")

    await eventually_async(is_complete)
    pieces = [lines for _, _, lines in await read_logs(lab)]
    assert b"".join(pieces).replace(b"\n", b"") == b"x" * 5_000_000 + b"the end"
    assert max(map(len, pieces)) <= 2 * MAX_LINE_BYTES


async def test_slow_log_follower_still_receives_the_last_line(lab, kubelet):
    spec = lab.job()
    await lab.started(spec)
    kubelet.write(pod_name(lab), *(f"{number:>100000}" for number in range(200)))
    following = lab.cluster.logs(spec.id, worker=None, tail=None, follow=True)
    lines = (await anext(following)).lines

    # Of twenty megabytes, a bounded part is buffered while the client reads nothing.
    while not lines.endswith(b"199\n"):
        lines = (await anext(following)).lines
    kubelet.close(pod_name(lab))
    await following.aclose()
