"""A job that makes room by moving is paused on its device, and goes on on another one."""

from __future__ import annotations

import re

from contract.looking import seen
from labs import MOVED, Lab, move, plan, start, stop
from runai.hub_service.model.records import last_move
from waiting import eventually_async


async def told(lab: Lab, workload: str) -> str:
    """Return the last move by the history, without its seconds."""
    return re.sub(r"\d+ s$", "N s", last_move(await lab.cluster.history(workload)))


async def test_a_move_is_told_until_the_next_stop(lab):
    small, owner = lab.job("small", on_term=143), lab.job("owner", project="nlp")
    await lab.started(small)
    await lab.cluster.submit([owner])

    async def tells(text: str) -> None:
        """Wait until the history tells this: on Kubernetes Events follow later."""

        async def is_told() -> bool:
            return await told(lab, small.id) == text

        await eventually_async(is_told, what=f"its history tells {text!r}")

    assert await lab.cluster.apply(plan(move(small.id, 1))) == []
    moving = await lab.until(small.id, "paused")
    await tells(MOVED)
    assert await lab.cluster.apply(plan(start(owner.id, 0), start(small.id, 1))) == []
    moved = await lab.until(small.id, "running")
    await tells(f"{MOVED}, N s")
    pauses = len((await seen(lab, small.id)).pauses)
    await lab.cluster.apply(plan(stop(small.id)))
    paused = await lab.until(small.id, "paused")
    await tells("")

    assert (moved.submitted, moved.attempts, moved.failures) == (moving.submitted, 2, 0)
    assert [share.device for share in moved.workers[0].devices] == [1]
    assert pauses == 1
    assert [record.moved for record in (moving, moved, paused)] == [MOVED, MOVED, ""]
