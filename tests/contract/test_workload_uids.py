"""A call that means one workload neither changes nor reads a later one of the same name."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from runai.hub_service.wire.errors import Conflict, NotFound

CHANGES = {
    "suspend": lambda cluster, **uid_option: cluster.suspend("vision/exp", by="ana", **uid_option),
    "resume": lambda cluster, **uid_option: cluster.resume("vision/exp", by="ana", **uid_option),
    "delete": lambda cluster, **uid_option: cluster.delete("vision/exp", by="ana", **uid_option),
    "scale": lambda cluster, **uid_option: cluster.scale(
        "vision/exp", workers=2, min_workers=None, by="ana", **uid_option
    ),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
async def test_change_request_with_the_uid_of_an_earlier_workload_is_refused(lab, change):
    spec = lab.job("exp", workers=4, elastic=True, min_workers=1)
    [earlier] = await lab.cluster.submit([spec])
    await lab.cluster.delete(spec.id, by="ana")
    await lab.until_deleted(spec.id)
    [later] = await lab.cluster.submit([spec])

    with pytest.raises(Conflict, match="another one, submitted by ana") as refused:
        await change(lab.cluster, uid=earlier.uid)

    assert refused.value.code == "another_workload"
    assert len({earlier.uid, later.uid, ""}) == 3
    assert (await lab.cluster.workload(spec.id)).uid == later.uid
    await change(lab.cluster, uid=later.uid)


async def test_array_elements_have_the_uid_of_their_array(lab):
    [array] = await lab.cluster.submit([lab.job("exp", array=3)])
    await lab.cluster.delete("vision/exp-1", by="ana", uid=array.uid)

    assert (await lab.cluster.workload("vision/exp")).uid == array.uid
    assert (await lab.cluster.workload("vision/exp-2")).uid == array.uid
    with pytest.raises(Conflict, match="another one"):
        await lab.cluster.delete("vision/exp-2", by="ana", uid="of another array")


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
async def test_change_request_during_replacement_of_its_workload_spares_the_later_workload(
    lab, change
):
    spec = lab.job("exp", workers=4, elastic=True, min_workers=1)
    [earlier] = await lab.cluster.submit([spec])

    async def replace_workload():
        with contextlib.suppress(NotFound):  # the change itself deletes it
            await lab.cluster.delete(spec.id, by="bob")
        await lab.until_deleted(spec.id)
        return (await lab.cluster.submit([spec]))[0]

    replacement = asyncio.create_task(replace_workload())
    while not replacement.done():
        with contextlib.suppress(Conflict, NotFound):
            await change(lab.cluster, uid=earlier.uid)
        await asyncio.sleep(0)
    later = await replacement

    with pytest.raises(Conflict):
        await change(lab.cluster, uid=earlier.uid)
    current = await lab.cluster.workload(spec.id)
    assert (current.uid, current.state, current.spec.workers) == (later.uid, "queued", 4)


READS = {
    "environment": lambda cluster, uid: cluster.environment("vision/exp", uid=uid),
    "logs": lambda cluster, uid: anext(_logs(cluster, uid=uid), None),
    "followed logs": lambda cluster, uid: anext(_logs(cluster, uid=uid, follow=True), None),
}


def _logs(cluster, *, uid, follow=False):
    return cluster.logs("vision/exp", worker=None, tail=None, follow=follow, uid=uid)


@pytest.mark.parametrize("read", READS.values(), ids=READS)
async def test_read_request_with_the_uid_of_an_earlier_workload_is_refused(lab, read):
    spec = lab.job("exp")
    [earlier] = await lab.cluster.submit([spec])
    await lab.cluster.delete(spec.id, by="ana")
    await lab.until_deleted(spec.id)
    await lab.cluster.submit([spec])

    with pytest.raises(Conflict, match="another one, submitted by ana") as refused:
        await read(lab.cluster, earlier.uid)

    assert refused.value.code == "another_workload"


async def test_followed_log_ends_when_a_new_workload_takes_the_workloads_name(lab):
    spec = lab.job("exp")
    [earlier] = await lab.cluster.submit([spec])
    followed = asyncio.create_task(anext(_logs(lab.cluster, uid="", follow=True), None))
    await asyncio.sleep(0)  # it follows the earlier one from here on
    await lab.cluster.delete(spec.id, by="ana")
    await lab.until_deleted(spec.id)

    [later] = await lab.cluster.submit([spec])

    async with asyncio.timeout(60):
        with contextlib.suppress(NotFound, Conflict):
            assert await followed is None
    assert (await lab.cluster.workload(spec.id)).uid == later.uid != earlier.uid
