"""Places for what is costly: few at once, none of them held while one waits, nobody has all."""

from __future__ import annotations

import asyncio

from runai.hub_service.api.places import Places, away


class Person:
    """Somebody who submits."""


async def test_few_are_worked_on_at_once_and_who_waits_gives_its_place_away():
    places, at_work, most = Places(2, 1), 0, 0
    decided = asyncio.Event()

    async def submission(of: Person) -> None:
        nonlocal at_work, most
        async with places.taken(of):
            for part in ("stored", "answered"):
                at_work += 1
                most = max(most, at_work)
                await asyncio.sleep(0)
                at_work -= 1
                if part == "stored":
                    async with away():
                        await decided.wait()

    async with asyncio.TaskGroup() as tasks:
        for person in (Person(), Person()) * 10:
            tasks.create_task(submission(person))
        for _ in range(100):  # all have been stored: none waits with a place in its hands
            await asyncio.sleep(0)
        decided.set()

    assert most == 2


async def test_a_place_is_given_back_once_by_who_is_broken_off_while_away():
    places, person = Places(1, 1), Person()

    async def submission() -> None:
        async with places.taken(person), away():
            await asyncio.Event().wait()

    task = asyncio.create_task(submission())
    await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

    async with asyncio.timeout(60), places.taken(person):
        pass
    assert places._free._value == 1


async def test_one_person_takes_not_all_places():
    places, flood, quiet = Places(4, 2), Person(), Person()
    done: list[str] = []

    async def submission(of: Person, name: str) -> None:
        async with places.taken(of):
            await asyncio.sleep(0)
            done.append(name)

    calls = [submission(flood, "flood") for _ in range(9)]
    await asyncio.gather(*calls, submission(quiet, "quiet"))

    assert done.index("quiet") == 2
