"""Tell people about their pods where Kubernetes' own tools show it: conditions and Events.

`kubectl describe pod` and KubeSpawner's page show Events; `kubectl get pod -o yaml`, dashboards and
autoscalers read the condition `PodScheduled`. Knows how both are written. What is told, and when,
is `acting`'s business.
"""

import asyncio
import datetime as dt
import logging
import time
from typing import NoReturn

from runai.hub_service.clusters.kubernetes.api import Api, ApiError
from runai.hub_service.clusters.kubernetes.jobs import Job
from runai.hub_service.clusters.kubernetes.objects import SCHEDULER, Pod
from runai.hub_service.scheduler.model import Reason

__all__ = ["News", "pod_path", "tell_event", "tell_waiting", "why"]

LOG = logging.getLogger("runai.kubernetes")

TOLD_AT_ONCE = 4
MOST_UNTOLD = 10_000

# More machines would help here, and only here: an autoscaler acts on this word.
_UNSCHEDULABLE = frozenset({"no_room", "fragmented", "no_such_node"})


def pod_path(pod: Pod, part: str = "") -> str:
    """Return the path of a pod, or of a part of it such as `status`."""
    path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}"
    return f"{path}/{part}" if part else path


async def tell_waiting(api: Api, pod: Pod, code: str, sentence: str) -> None:
    """Write why a pod waits, once as its condition and once as an Event."""
    word = "Unschedulable" if code in _UNSCHEDULABLE else _word(code)
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": word,
        "message": sentence,
        "lastTransitionTime": _now(),
    }
    # With the UID: a pod that was made again by the same name is another one.
    body = {"metadata": {"uid": pod.uid}, "status": {"conditions": [condition]}}
    await api.patch(pod_path(pod, "status"), body, strategic=True)
    await tell_event(api, pod, "Waiting", sentence)


async def tell_event(
    api: Api, of: Pod | Job, word: str, sentence: str, *, bad: bool = False
) -> None:
    """Write an Event about a pod or a Job."""
    now = _now()
    event = {
        "metadata": {"generateName": f"{of.name}.", "namespace": of.namespace},
        "involvedObject": {
            "apiVersion": "batch/v1" if isinstance(of, Job) else "v1",
            "kind": "Job" if isinstance(of, Job) else "Pod",
            "namespace": of.namespace,
            "name": of.name,
            "uid": of.uid,
        },
        "type": "Warning" if bad else "Normal",
        "reason": word,
        "message": sentence,
        "source": {"component": SCHEDULER},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
    await api.create(f"/api/v1/namespaces/{of.namespace}/events", event)


class News:
    """Events that no decision waits for, told in the background, oldest first.

    Kubernetes keeps Events for an hour, and promises nothing of them: too many are dropped.
    """

    def __init__(self, api: Api) -> None:
        """Tell nothing yet: `run` does."""
        self._api = api
        self._untold: asyncio.Queue[tuple[Pod, str, str]] = asyncio.Queue(MOST_UNTOLD)

    def tell(self, pod: Pod, word: str, sentence: str) -> None:
        """Have an Event about a pod written soon."""
        try:
            self._untold.put_nowait((pod, word, sentence))
        except asyncio.QueueFull:
            LOG.warning("too many Events: not told of %s: %s", pod.key, sentence)

    async def run(self) -> NoReturn:
        """Tell for ever."""
        async with asyncio.TaskGroup() as telling:
            for _ in range(TOLD_AT_ONCE):
                telling.create_task(self._tell())
        raise AssertionError("it tells for ever")

    async def _tell(self) -> NoReturn:
        while True:
            pod, word, sentence = await self._untold.get()
            try:
                await tell_event(self._api, pod, word, sentence)
            except ApiError as error:
                LOG.info("not told of %s: %s", pod.key, error.message)


def why(reason: Reason) -> str:
    """Write a decision's reason as people are to read it, with its rule."""
    return f"{reason.text} ({reason.rule})" if reason.rule else reason.text


def _word(code: str) -> str:
    """Write a code as Kubernetes writes reasons.

    >>> _word("over_build_quota")
    'OverBuildQuota'
    """
    return "".join(part.capitalize() for part in code.split("_"))


def _now() -> str:
    return dt.datetime.fromtimestamp(int(time.time()), dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
