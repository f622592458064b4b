"""Device holders are returned without a scan of all waiting workloads.

Each node's agent asks for them every second.
"""

from __future__ import annotations

from labs import plan, start


async def test_cluster_holders_are_only_the_workloads_with_devices(lab):
    waiting_job, running_job = lab.job("waits"), lab.job("holds")
    await lab.cluster.submit([waiting_job])
    assert await lab.cluster.holders() == {}

    await lab.started(running_job)

    record = await lab.cluster.workload(running_job.id)
    assert await lab.cluster.holders() == {running_job.id: record}
    await lab.end(running_job, 0)
    await lab.until(running_job.id, "succeeded")
    assert await lab.cluster.holders() == {}


async def test_cluster_holders_are_cached_until_a_further_workload_gets_a_device(lab):
    first, second = lab.job("first"), lab.job("second")
    await lab.started(first)
    await lab.until(first.id, "running")
    before, devices = await lab.cluster.holders(), await lab.cluster.devices()
    assert await lab.cluster.holders() is before
    assert await lab.cluster.devices() is devices

    await lab.cluster.submit([second])
    await lab.cluster.apply(plan(start(second.id, 1)))

    assert (await lab.cluster.holders()).keys() == {first.id, second.id}
    assert before.keys() == {first.id}
