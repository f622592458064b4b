"""Users who call the API, as a process of its own that says what it cost: JSON in, JSON out.

    python benchmarks/crowd/people.py < PLAN

Calls come at their times whether or not those before them were answered, so a service that falls
behind is seen to. What it refuses for now (429, 503) is asked again after `Retry-After`, under the
same key: each try is timed, and the whole from the first try to the answer.
"""

import asyncio
import json
import random
import resource
import secrets
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict

import aiohttp

FOR_NOW = {429, 503}
PATIENCE_S = 90.0
"""Then somebody gives up, which is counted; it has not been done."""
LOOPS = 50
OPEN_A_SECOND = 100.0
"""More than three times as often as one may ask."""
ARRAY = 9_000
"""Two of them, and what their user has besides, are what one may have (`RUNAI_USER_JOBS`)."""
DELETES_AT_ONCE, DELETES_S = 8, 10.0
"""Of an array, before the next one is submitted."""

Flood = Literal["", "loops", "open", "arrays"]
FLOODED = ("submit", "overview", "mine")


class Plan(TypedDict):
    """What a crowd does: at `rates` calls a second of each kind, by users in turn."""

    url: str
    users: list[str]
    projects: dict[str, str]
    rates: dict[str, float]
    seconds: float
    """For how long calls begin; what is under way then is waited for."""
    flood: Flood
    """What the first user floods the service with, never waiting as told: loops that ask without
    pause; calls that come at their times, more than one may ask; arrays, which are deleted job by
    job."""


class Told(TypedDict):
    """What came of it; seconds."""

    tries: dict[str, list[float]]
    answered: dict[str, list[float]]
    statuses: dict[str, int]
    failures: list[str]
    acknowledged: list[str]
    lost: int
    late_s: float
    """How much later than planned the generator itself began a call, at worst."""
    cpu: float
    """Cores that this process kept busy."""


@dataclass
class Crowd:
    """The users, and what they have met so far."""

    plan: Plan
    http: aiohttp.ClientSession
    tries: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    answered: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    statuses: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    acknowledged: list[str] = field(default_factory=list)
    lost: int = 0
    late: float = 0.0
    mine: list[str] = field(default_factory=list)
    """Of the array that was submitted last, what is not deleted yet."""

    async def ask(self, kind: str, user: str, *, waits: bool = True) -> None:
        """Make one call until it is answered for good."""
        method, path, body = self._call(kind, user)
        headers = {"Authorization": f"Bearer token-of-{user}"}
        if method == "POST":
            headers |= {"Idempotency-Key": secrets.token_hex(8)}
        began = time.perf_counter()
        while True:
            status, told, pause = await self._try(kind, method, path, body, headers)
            if status not in FOR_NOW:
                if status in {200, 201, 202}:
                    self.answered[kind].append(time.perf_counter() - began)
                    if kind in {"submit", "array"}:
                        stored = [w["id"] for w in json.loads(told)["workloads"]]
                        if kind == "submit":
                            self.acknowledged += stored
                        else:
                            self.mine = stored
                elif kind == "array" and status == 409:
                    pass  # one has as many jobs as one may
                elif len(self.failures) < 20:
                    self.failures.append(f"{kind}: {status} {told[:200].decode(errors='replace')}")
                return
            if not waits:
                return
            if time.perf_counter() - began + pause > PATIENCE_S:
                self.lost += 1
                return
            await asyncio.sleep(pause)

    async def _try(
        self, kind: str, method: str, path: str, body: object, headers: dict[str, str]
    ) -> tuple[int, bytes, float]:
        began = time.perf_counter()
        try:
            request = self.http.request(method, path, json=body, headers=headers)
            async with request as reply:
                told, status = await reply.read(), reply.status
                after = reply.headers.get("Retry-After", "")
        except (aiohttp.ClientError, TimeoutError) as failed:
            told, status, after = repr(failed).encode(), 0, ""
        self.tries[kind].append(time.perf_counter() - began)
        self.statuses[f"{kind} {status}"] += 1
        if status in FOR_NOW and not after.isdecimal():
            self.failures.append(f"{kind}: {status} without Retry-After")
        return status, told, float(after or 1) * random.uniform(1, 1.5)

    def _call(self, kind: str, user: str) -> tuple[str, str, object]:
        project = self.plan["projects"][user]
        match kind:
            case "submit" | "array":
                wish: dict[str, Any] = {"project": project, "gpus": 1, "command": ["sleep", "600"]}
                wish |= {"array": ARRAY} if kind == "array" else {}
                return "POST", "api/v1/workloads", wish
            case "describe":
                return "GET", f"api/v1/workloads/{project}/queued-{user}-0", None
            case "mine":
                return "GET", f"api/v1/workloads?user={user}", None
            case "page":
                return "GET", "", None
            case "delete":
                return "DELETE", f"api/v1/workloads/{self.mine.pop()}", None
            case _:
                return "GET", f"api/v1/{kind}", None

    async def come(
        self, kinds: Sequence[str], rate: float, seconds: float, *, waits: bool = True
    ) -> None:
        """Begin calls of these kinds in turn, at their times."""
        loop = asyncio.get_running_loop()
        began, users, number = loop.time(), self.plan["users"], 0
        async with asyncio.TaskGroup() as calls:
            while (due := number / rate) < seconds:
                await asyncio.sleep(began + due - loop.time())
                self.late = max(self.late, loop.time() - began - due)
                user = users[number % len(users)]
                calls.create_task(self.ask(kinds[number % len(kinds)], user, waits=waits))
                number += 1

    async def flood(self, kind: Flood, seconds: float) -> None:
        """Ask for more than is one's due, and never wait as one is told to."""
        end = asyncio.get_running_loop().time() + seconds
        match kind:
            case "":
                return
            case "loops":
                await asyncio.gather(*(self._loop(end) for _ in range(LOOPS)))
            case "open":
                await self.come(FLOODED, OPEN_A_SECOND, seconds, waits=False)
            case "arrays":
                await self._arrays(end)

    async def _loop(self, end: float) -> None:
        user = self.plan["users"][0]
        while asyncio.get_running_loop().time() < end:
            await self.ask(random.choice(FLOODED), user, waits=False)

    async def _arrays(self, end: float) -> None:
        loop, user = asyncio.get_running_loop(), self.plan["users"][0]

        async def delete(until: float) -> None:
            while self.mine and loop.time() < until:
                await self.ask("delete", user, waits=False)

        while loop.time() < end:
            await self.ask("array", user, waits=False)
            until = min(end, loop.time() + DELETES_S)
            await asyncio.gather(*(delete(until) for _ in range(DELETES_AT_ONCE)))


async def main(plan: Plan) -> Told:
    """Play the plan."""
    began, cpu = time.perf_counter(), _cpu()
    limits = aiohttp.TCPConnector(limit=0)
    patience = aiohttp.ClientTimeout(total=120)
    async with aiohttp.ClientSession(plan["url"], connector=limits, timeout=patience) as http:
        crowd = Crowd(plan, http)
        async with asyncio.TaskGroup() as together:
            for kind, rate in plan["rates"].items():
                together.create_task(crowd.come([kind], rate, plan["seconds"]))
            together.create_task(crowd.flood(plan["flood"], plan["seconds"]))
    return {
        "tries": dict(crowd.tries),
        "answered": dict(crowd.answered),
        "statuses": dict(crowd.statuses),
        "failures": crowd.failures,
        "acknowledged": crowd.acknowledged,
        "lost": crowd.lost,
        "late_s": crowd.late,
        "cpu": (_cpu() - cpu) / (time.perf_counter() - began),
    }


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    wanted: dict[str, Any] = json.load(sys.stdin)
    json.dump(asyncio.run(main(wanted)), sys.stdout)  # type: ignore[arg-type]
