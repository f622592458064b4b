"""Odd objects from any user with rights to create pods and Jobs: they delay no other workload.

They are left out, or get a message that they will not be started; the rest is scheduled as usual.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from kubernetes_asyncio.client.api_client import ApiClient
from kubernetes_asyncio.client.configuration import Configuration

from control_plane.objects import job, pod
from control_plane.scheduling import Scheduler
from runai.hub_service.clusters.kubernetes.client.api import Api, decoded
from runai.hub_service.clusters.kubernetes.informers.informer import Informer
from runai.hub_service.clusters.kubernetes.objects.jobs import read_job
from runai.hub_service.clusters.kubernetes.objects.pod_groups import PodGrouping
from runai.hub_service.wire.errors import InvalidRequest

DEEP = 3_000
TOO_DEEP = 100_000  # fits the JSON parser of every Python version


def a_huge_gang() -> dict[str, Any]:
    made = job("huge", project="odd")
    made["metadata"]["annotations"] = {"runai/held": "by its user"}
    made["spec"] |= {"suspend": True, "completions": 2**31 - 1, "parallelism": 2**31 - 1}
    made["spec"]["template"]["metadata"]["labels"]["runai/gang"] = "true"
    return made


def a_pod_that_wants_more_than_there_are_digits() -> dict[str, Any]:
    made = pod("greedy", project="odd")
    made["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = "1e9999"
    return made


@pytest.mark.kubernetes
def test_huge_gang_and_huge_gpu_request_do_not_block_another_pod(lab, rights, eventually):
    lab.node("gpu-0", gpus=1)
    lab.project("odd", quota=0)
    lab.project("bob", quota=1)
    lab.namespace.create(a_huge_gang())
    lab.namespace.create(a_pod_that_wants_more_than_there_are_digits())
    with Scheduler(rights):
        lab.namespace.create(pod("bobs", project="bob"))
        eventually(lambda: lab.namespace.node_of("bobs"), what="bob's runs")


async def test_fields_thousands_deep_hide_nothing_in_a_list_or_a_watch():
    deep = '{"metadata": %s, "kind": "Pod"}\n' % ('{"f:a":' * TOO_DEEP + "{}" + "}" * TOO_DEEP)

    async def answer(_request: web.Request) -> web.Response:
        return web.Response(text=deep)

    app = web.Application()
    app.router.add_get("/pods", answer)
    async with TestServer(app) as server:
        settings = Configuration()
        settings.host = str(server.make_url("")).rstrip("/")
        async with Api(ApiClient(settings)) as api:
            listed = await api.get("/pods")
            (watched,) = [change async for change in api.watch("/pods", seconds=60)]

    assert listed["kind"] == watched["kind"] == "Pod"


def test_a_job_of_too_many_pods_at_once_is_told_that_it_will_not_start():
    made = a_huge_gang()
    made["metadata"] |= {
        "uid": "uid-huge",
        "namespace": "lab",
        "creationTimestamp": "2026-01-01T00:00:00Z",
    }
    (group,) = PodGrouping().groups([], {"uid-huge": read_job(made)}, {}, "default")

    assert group.refusal == "more than 10000 workers cannot be started together: submit fewer"
    assert len(group.pods) == 10_000


WHERE = {
    "in an object": (b'{"a": %s, "b": [1]}', {"a": None, "b": [1]}),
    "in a list": (b'[%s, {"b": "]}"}]', [None, {"b": "]}"}]),
    "behind text with brackets and quotes": (rb'{"t": "[{\"[", "a": %s}', {"t": '[{"[', "a": None}),
}


@pytest.mark.parametrize(("around", "read"), WHERE.values(), ids=WHERE)
def test_decoder_replaces_too_deep_values_with_null_and_keeps_the_rest(around, read):
    """The nesting level of the first null does not matter."""
    deep = b"[" * TOO_DEEP + b'"]"' + b"]" * TOO_DEEP
    found = decoded(around.replace(b"%s", deep))

    def flat(value: Any) -> Any:
        while isinstance(value, list) and len(value) == 1 and isinstance(value[0], list):
            value = value[0]
        return None if value == [None] else value

    pairs = found.items() if isinstance(found, dict) else enumerate(found)
    wanted = read.items() if isinstance(read, dict) else enumerate(read)
    assert [(key, flat(value)) for key, value in pairs] == list(wanted)


@pytest.mark.parametrize("text", [b"[" * DEEP, b'{"a":' * DEEP, b"[" * DEEP + b'"', b"no JSON"])
def test_decoder_refuses_invalid_json(text):
    with pytest.raises(ValueError, match=r"Expecting|Extra|Unterminated"):
        decoded(text)


@pytest.mark.parametrize("failure", [InvalidRequest("no"), RecursionError(), TypeError()], ids=repr)
def test_an_object_that_cannot_be_read_is_left_out(failure, caplog):
    def parse(found: Any) -> str:
        if found["metadata"]["name"] == "odd":
            raise failure
        return json.dumps(found["metadata"]["name"])

    changes: list[None] = []
    mirror = Informer(None, "/pods", parse, lambda: changes.append(None))  # type: ignore[arg-type]
    for name in ("odd", "even"):
        mirror.apply({"metadata": {"namespace": "lab", "name": name, "resourceVersion": "1"}})

    assert dict(mirror.objects) == {"lab/even": '"even"'}
    assert "lab/odd cannot be read and is left out" in caplog.text
