"""Clients that go on while a service restarts, and a record of its acknowledgements.

Every acknowledged change must be there afterwards, exactly once; tests of both platforms check it.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from runai.hub_service.client import Client
from runai.hub_service.wire.errors import NotFound, RunaiError
from runai.hub_service.wire.schemas import ProjectPut
from runai.hub_service.wire.workload_request import SubmitRequest


@dataclass
class Acknowledged:
    """The changes that the service acknowledged to clients, and its refusals."""

    submitted: list[str] = field(default_factory=list)
    suspended: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    quotas: list[float] = field(default_factory=list)
    """The quotas of one project, the latest last."""
    failed: list[RunaiError] = field(default_factory=list)

    def counts(self) -> tuple[int, int, int, int]:
        """Return the numbers of submissions, suspensions, deletions and quotas."""
        return len(self.submitted), len(self.suspended), len(self.deleted), len(self.quotas)

    @property
    def remaining(self) -> set[str]:
        """Return the workloads that were submitted, and not deleted."""
        return set(self.submitted) - set(self.deleted)

    def contradictions(self, states: dict[str, str]) -> list[str]:
        """Return the contradictions between workloads' states and the acknowledgements."""
        runs = {"queued", "starting", "running"}
        expected = dict.fromkeys(self.remaining, runs)
        expected |= {name: {"suspended", "stopping"} for name in self.suspended}
        return [
            *(f"{error.message} was an answer" for error in self.failed),
            *(
                f"{name} exists though it was deleted, or never submitted"
                for name in states.keys() - self.remaining
            ),
            *(f"{name} is lost" for name in self.remaining - states.keys()),
            *(f"{n} is {s}" for n, s in states.items() if s not in expected.get(n, {s})),
            *(f"{n} was submitted {k} times" for n, k in Counter(self.submitted).items() if k > 1),
        ]


ClientAction = Callable[[Client, Acknowledged, int], None]
"""An action that a client repeats; the integer counts its calls from 1."""


def _submit(client: Client, acknowledged: Acknowledged, name: str | None = None) -> str:
    # Without a name: only the idempotency key distinguishes a retry from another submission.
    request = SubmitRequest(
        name=name, owner="ana", gpus=1, command=["sleep", "600"], grace_seconds=1
    )
    (workload,) = client.submit(request).workloads
    acknowledged.submitted.append(workload.id)
    return workload.id


def submit_workload(client: Client, acknowledged: Acknowledged, _number: int) -> None:
    """Submit a workload."""
    _submit(client, acknowledged)


def suspend_workload(client: Client, acknowledged: Acknowledged, _number: int) -> None:
    """Submit a workload, and suspend it."""
    workload = _submit(client, acknowledged)
    client.suspend(workload)
    acknowledged.suspended.append(workload)


def delete_workload(client: Client, acknowledged: Acknowledged, number: int) -> None:
    """Submit a workload, and delete it."""
    workload = _submit(client, acknowledged, f"gone-{number}")
    with suppress(NotFound):  # the first answer was lost; the retry confirms the deletion
        client.delete(workload)
    acknowledged.deleted.append(workload)


def change_quota(client: Client, acknowledged: Acknowledged, number: int) -> None:
    """Change a project's quota."""
    client.put_project("side", ProjectPut(quota=number))
    acknowledged.quotas.append(number)


@contextmanager
def running_clients(
    url: str, actions: Sequence[tuple[ClientAction, str]]
) -> Iterator[Acknowledged]:
    """Repeat each action with a client of its own, in a thread; all have ended at the exit."""
    acknowledged, enough = Acknowledged(), threading.Event()

    def repeat_action(action: ClientAction, token: str) -> None:
        with Client(url, token, patience_s=120) as client:
            for number in itertools.count(1):
                try:
                    action(client, acknowledged, number)
                except RunaiError as error:
                    acknowledged.failed.append(error)
                if enough.is_set():
                    return

    threads = [threading.Thread(target=repeat_action, args=each) for each in actions]
    for thread in threads:
        thread.start()
    try:
        yield acknowledged
    finally:
        enough.set()
        for thread in threads:
            thread.join()
