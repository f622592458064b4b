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

DEPTH = 3_000
EXCESSIVE_DEPTH = 100_000  # fits the JSON parser of every Python version


def huge_gang() -> dict[str, Any]:
    made = job("huge", project="odd")
    made["metadata"]["annotations"] = {"runai/held": "by its user"}
    made["spec"] |= {"suspend": True, "completions": 2**31 - 1, "parallelism": 2**31 - 1}
    made["spec"]["template"]["metadata"]["labels"]["runai/gang"] = "true"
    return made


def pod_with_overflowing_request() -> dict[str, Any]:
    made = pod("greedy", project="odd")
    made["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = "1e9999"
    return made


@pytest.mark.kubernetes
def test_huge_gang_and_huge_gpu_request_do_not_block_ordinary_pods(lab, kubeconfig, eventually):
    lab.node("gpu-0", gpus=1)
    lab.project("odd", quota=0)
    lab.project("bob", quota=1)
    lab.namespace.create(huge_gang())
    lab.namespace.create(pod_with_overflowing_request())
    with Scheduler(kubeconfig):
        lab.namespace.create(pod("bobs", project="bob"))
        eventually(lambda: lab.namespace.node_of("bobs"), what="bob's pod runs")


async def test_deeply_nested_object_fields_do_not_break_api_lists_and_watches():
    deep = '{"metadata": %s, "kind": "Pod"}\n' % (
        '{"f:a":' * EXCESSIVE_DEPTH + "{}" + "}" * EXCESSIVE_DEPTH
    )

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


def test_job_of_too_many_workers_is_refused_with_a_message():
    gang = huge_gang()
    gang["metadata"] |= {
        "uid": "uid-huge",
        "namespace": "lab",
        "creationTimestamp": "2026-01-01T00:00:00Z",
    }
    (group,) = PodGrouping().groups([], {"uid-huge": read_job(gang)}, {}, "default")

    assert group.refusal == "more than 10000 workers cannot be started together: submit fewer"
    assert len(group.pods) == 10_000


DEEP_DOCUMENTS = {
    "in an object": (b'{"a": %s, "b": [1]}', {"a": None, "b": [1]}),
    "in a list": (b'[%s, {"b": "]}"}]', [None, {"b": "]}"}]),
    "behind text with brackets and quotes": (rb'{"t": "[{\"[", "a": %s}', {"t": '[{"[', "a": None}),
}


@pytest.mark.parametrize(("document", "expected"), DEEP_DOCUMENTS.values(), ids=DEEP_DOCUMENTS)
def test_json_decoder_replaces_too_deep_values_with_null_and_reads_the_rest(document, expected):
    """The nesting level of the first null does not matter."""
    deep = b"[" * EXCESSIVE_DEPTH + b'"]"' + b"]" * EXCESSIVE_DEPTH
    parsed = decoded(document.replace(b"%s", deep))

    def flat(value: Any) -> Any:
        while isinstance(value, list) and len(value) == 1 and isinstance(value[0], list):
            value = value[0]
        return None if value == [None] else value

    pairs = parsed.items() if isinstance(parsed, dict) else enumerate(parsed)
    expected_pairs = expected.items() if isinstance(expected, dict) else enumerate(expected)
    assert [(key, flat(value)) for key, value in pairs] == list(expected_pairs)


@pytest.mark.parametrize("text", [b"[" * DEPTH, b'{"a":' * DEPTH, b"[" * DEPTH + b'"', b"no JSON"])
def test_api_response_decoder_refuses_invalid_json(text):
    with pytest.raises(ValueError, match=r"Expecting|Extra|Unterminated"):
        decoded(text)


@pytest.mark.parametrize("failure", [InvalidRequest("no"), RecursionError(), TypeError()], ids=repr)
def test_informer_omits_and_logs_an_unreadable_object(failure, caplog):
    def parse(found: Any) -> str:
        if found["metadata"]["name"] == "odd":
            raise failure
        return json.dumps(found["metadata"]["name"])

    changes: list[None] = []
    informer = Informer(None, "/pods", parse, lambda: changes.append(None))  # type: ignore[arg-type]
    for name in ("odd", "even"):
        informer.apply({"metadata": {"namespace": "lab", "name": name, "resourceVersion": "1"}})

    assert dict(informer.objects) == {"lab/even": '"even"'}
    assert "lab/odd cannot be read and is left out" in caplog.text
