"""An invalid request is answered by one sentence with the way out, and stores nothing."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import Any, get_args

import pytest
from fastapi.routing import APIRoute
from pydantic import ValidationError

from runai.hub_service.api import routes
from runai.hub_service.wire.base_schema import Wire
from runai.hub_service.wire.schemas import ProjectPut
from runai.hub_service.wire.workload_request import SubmitRequest

JSON = {"Content-Type": "application/json"}
JOB: dict[str, Any] = {"name": "exp1", "command": ["true"]}
SESSION: dict[str, Any] = {"name": "lab", "kind": "session", "command": ["sleep", "60"]}


def body_models() -> set[type[Wire]]:
    """Return the models of all requests' bodies, and the models in them."""
    modules = [import_module(f"{routes.__name__}.{m.name}") for m in iter_modules(routes.__path__)]
    routers = [getattr(module, "router", None) for module in modules]
    fields = [route.body_field for router in routers if router for route in router.routes
              if isinstance(route, APIRoute) and route.body_field]  # fmt: skip
    return set().union(*(models_in(field.field_info.annotation) for field in fields))


def models_in(annotation: Any) -> set[type[Wire]]:
    """Return the models of an annotation, and of their fields."""
    if isinstance(annotation, type) and issubclass(annotation, Wire):
        inner = (field.annotation for field in annotation.model_fields.values())
        return {annotation}.union(*map(models_in, inner))
    return set().union(*map(models_in, get_args(annotation)))


def number_fields(model: type[Wire]) -> list[str]:
    """Return the fields of a body that take a number."""
    fields = model.model_json_schema().get("properties", {})
    return [name for name, form in fields.items() if {"integer", "number"} & json_types(form)]


def json_types(form: Any) -> set[Any]:
    """Return the JSON types that a field takes."""
    choices = [*form.get("anyOf", ()), *form.get("oneOf", ())]
    return {form.get("type")}.union(*map(json_types, choices))


# user, body, status, code, phrases of the sentence and its hint
INVALID_SUBMISSIONS = [
    pytest.param("ana", {**JOB, "project": "visn"}, 404, "unknown_project",
                 ["There is no project visn.", "Yours: vision."], id="unknown project"),
    pytest.param("ana", {**JOB, "project": "nlp"}, 403, "not_a_member",
                 ["You are not a member of project nlp.", "vision"], id="not a member"),
    pytest.param("out", JOB, 400, "no_project",
                 ["You are not a member of any project.", "admin"], id="in no project"),
    pytest.param("ana", {**JOB, "gpus": -1}, 400, "invalid_request",
                 ["gpus is -1: use a number from 0 upwards."], id="-1 GPUs"),
    pytest.param("ana", {**JOB, "gpus": 1.5}, 400, "not_whole",
                 ["1.5 GPUs are not possible", "Ask for 1 or 2"], id="fraction 1.5"),
    pytest.param("ana", {**JOB, "gpus": 0.3333}, 400, "invalid_request",
                 ["gpus is 0.3333: use at most three decimals."], id="too fine a fraction"),
    pytest.param("ana", {**JOB, "gpus": "many"}, 400, "invalid_request",
                 ["gpus is 'many': use a number such as 0.5 or 2."], id="no number"),
    pytest.param("ana", {**JOB, "expected_runtime": "soon"}, 400, "invalid_request",
                 ["expected_runtime is 'soon': give a number and a unit, such as 90m, 2h or 3d."],
                 id="no duration"),
    pytest.param("ana", {**JOB, "expected_runtime": "2h", "max_runtime": "90m"}, 400,
                 "over_time_limit",
                 ["An expected runtime of 2h is longer than its time limit of 90m", "--time 2h"],
                 id="runtime above its time limit"),
    pytest.param("ana", {**JOB, "code": {"files": {f"{n}.py": "gone" for n in "abcd"}}}, 400,
                 "invalid_request", ["code is"], id="code of four files"),
    pytest.param("ana", {**JOB, "code": {"files": {"a.py": "0" * 63}}}, 400,
                 "invalid_request", ["code is"], id="code with a short digest"),
    pytest.param("ana", {**JOB, "code": {"files": {"a\n.py": "gone"}}}, 400,
                 "invalid_request", ["code is"], id="code without a path"),
    pytest.param("ana", {**JOB, "code": {"commit": "HEAD"}}, 400,
                 "invalid_request", ["code is 'HEAD'"], id="code without a commit id"),
    pytest.param("ana", {**JOB, "image": "example/train:1"}, 400, "other_executor",
                 ["--image is for Kubernetes; jobs here run as programs of this machine.",
                  "Leave it out: what your notebook has installed is there."],
                 id="image of a program"),
    pytest.param("ana", {**JOB, "image": "Not an image"}, 400, "invalid_request",
                 ["image is 'Not an image': it has characters that are not possible there",
                  "docker pull"], id="malformed image"),
    pytest.param("ana", {**JOB, "gpus": 5}, 400, "over_limit",
                 ["5 GPUs are more than project vision may ever hold", "limit is 4"],
                 id="job above the limit"),
    pytest.param("ana", {**JOB, "gpus": 1, "workers": 5}, 400, "over_limit",
                 ["5 GPUs", "limit is 4"], id="a gang above the limit"),
    pytest.param("nel", {**SESSION, "gpus": 2}, 400, "over_build_quota",
                 ["2 GPUs for a session", "build quota is 1", "--preemptible"],
                 id="a session above the build quota"),
    pytest.param("ana", {**JOB, "gpus": 1, "gpu_memory_mib": 4096}, 400, "invalid_request",
                 ["Both GPUs and GPU memory", "--gpu-memory"], id="GPUs and memory"),
    pytest.param("ana", {"name": "exp1"}, 400, "invalid_request",
                 ["A job needs a command.", "train.py"], id="no command"),
    pytest.param("ana", {"name": "lab", "kind": "session"}, 400, "invalid_request",
                 ["A session without a command", "server"], id="session without a server"),
    pytest.param("ana", {**SESSION, "workers": 2}, 400, "invalid_request",
                 ["A session is one process."], id="a session of two workers"),
    pytest.param("ana", {**SESSION, "saves": True}, 400, "not_saving",
                 ["A session cannot save its work", "--saves"], id="a session that saves"),
    pytest.param("ana", {**JOB, "workers": 2, "min_workers": 3}, 400, "invalid_request",
                 ["--min-workers 3 is more than", "--workers 2"], id="minimum above workers"),
    pytest.param("ana", {**SESSION, "elastic": True}, 400, "not_elastic",
                 ["A session cannot be elastic"], id="an elastic session"),
    pytest.param("ana", {**JOB, "elastic": True, "preemptible": False}, 400, "not_elastic",
                 ["cannot keep all of its GPUs", "--elastic"], id="elastic, never preempted"),
    pytest.param("ana", {**JOB, "elastic": True, "gpus": 0.5}, 400, "not_elastic",
                 ["whole GPUs, not 0.5.", "--gpus 1"], id="elastic on half a GPU"),
    pytest.param("ana", {**JOB, "elastic": True, "gpus": None, "gpu_memory_mib": 512}, 400,
                 "not_elastic", ["whole GPUs, not 512 MiB", "--gpu-memory"],
                 id="elastic on memory"),
    pytest.param("ana", {**JOB, "elastic": True, "gpus": 2, "workers": 3}, 400,
                 "not_elastic", ["has 1 GPU, not 2.", "--workers 3 alone, or --gpus 2"],
                 id="elastic, 2 GPUs each"),
    pytest.param("ana", {**JOB, "name": "Exp_1"}, 400, "invalid_request",
                 ["name is 'Exp_1'", "small letters"], id="malformed name"),
    pytest.param("ana", {**JOB, "name": "x" * 38, "array": 10}, 400, "invalid_request",
                 ["too long for an array of 10"], id="name too long for an array"),
    pytest.param("ana", {**JOB, "priority": 90}, 403, "priority",
                 ["Priority 90 is for admins", "low, normal or high"], id="priority for admins"),
    pytest.param("ana", {**JOB, "priority": "urgent"}, 400, "invalid_request",
                 ["priority is 'urgent'", "use low, normal, high or a number from 0 to 1000"],
                 id="unknown priority"),
    pytest.param("ana", {**JOB, "owner": "vic"}, 403, "forbidden",
                 ["Only the platform's own hub may submit for others."], id="owner not the user"),
    pytest.param("ana", {**JOB, "workdir": "/no/such/place"}, 400, "no_such_directory",
                 ["/no/such/place does not exist", "--workdir"], id="no such directory"),
    pytest.param("ana", {**JOB, "workdir": "here"}, 400, "invalid_request",
                 ["here is not absolute"], id="relative directory"),
    pytest.param("ana", {**JOB, "gpu": 1}, 400, "unknown_field",
                 ["There is no field gpu."], id="unknown field"),
    pytest.param("ana", {**JOB, "env": {"MY-SECRET": "hunter2"}}, 400, "invalid_request",
                 ["env"], id="malformed variable"),
    pytest.param("ro", JOB, 403, "missing_scope",
                 ["This token may only read", "custom:runai:submit"], id="a token that only reads"),
    pytest.param("", JOB, 401, "unauthenticated", ["."], id="no token"),
    pytest.param("hub", {**JOB, "owner": "zoe"}, 404, "not_found",
                 ["There is no user zoe."], id="owner unknown to the hub"),
    pytest.param("hub", JOB, 400, "invalid_request", ["owner is missing."], id="no owner"),
]  # fmt: skip


@pytest.mark.parametrize(("user", "body", "status", "code", "phrases"), INVALID_SUBMISSIONS)
async def test_invalid_job_submission_is_refused_in_one_sentence_and_stores_nothing(
    simulated, user, body, status, code, phrases
):
    async with simulated.http(user) as http:
        paths = ("api/v1/workloads", "api/v1/workloads?dry_run=true")
        replies = [await http.post(path, json=body) for path in paths]

    for reply in replies:
        problem = reply.json()
        message = f"{problem['detail']} {problem['hint']}"
        assert (reply.status_code, problem["code"]) == (status, code)
        assert reply.headers["content-type"] == "application/problem+json"
        assert [part for part in phrases if part not in message] == []
        assert problem["detail"].endswith(".")
        assert "\n" not in message
        assert "hunter2" not in reply.text
    assert await simulated.platform.cluster.workloads() == []


async def test_used_job_name_is_refused_with_a_hint_to_delete_the_job(simulated):
    ana = await simulated.client("ana")
    await ana.submit(SubmitRequest.model_validate(JOB))
    async with simulated.http("ana") as http:
        paths = ("api/v1/workloads", "api/v1/workloads?dry_run=true")
        replies = [await http.post(path, json=JOB) for path in paths]

    for reply in replies:
        assert (reply.status_code, reply.json()["code"]) == (409, "name_taken")
        assert "runai delete exp1 -p vision" in reply.json()["hint"]
    assert len(await ana.workloads()) == 1


async def test_array_submission_with_one_used_element_name_stores_no_workload(simulated):
    ana = await simulated.client("ana")
    await ana.submit(SubmitRequest(name="exp-2", command=["true"]))
    async with simulated.http("ana") as http:
        reply = await http.post(
            "api/v1/workloads", json={"name": "exp", "command": ["true"], "array": 5}
        )

    assert (reply.status_code, reply.json()["code"]) == (409, "name_taken")
    assert [w.name for w in await ana.workloads()] == ["exp-2"]


async def test_submission_without_project_by_member_of_several_projects_is_refused(simulated):
    root = await simulated.client("root")
    await root.put_project("nlp", ProjectPut(members=["ana"]))
    async with simulated.http("ana") as http:
        reply = await http.post("api/v1/workloads", json=JOB)

    assert (reply.status_code, reply.json()["code"]) == (400, "which_project")
    assert "vision, nlp" in reply.json()["detail"]
    assert "runai project use" in reply.json()["hint"]


INVALID_REQUESTS = [
    pytest.param("vic", "PUT", "projects/vision", {"quota": 5}, 403, "Only hub admins",
                 id="quota by the project's admin"),
    pytest.param("ana", "PUT", "projects/vision", {"members": ["ana", "eve"]}, 403, "admins",
                 id="members by a member"),
    pytest.param("root", "PUT", "projects/Vision", {"quota": 1}, 400, "name is 'Vision'",
                 id="malformed project name"),
    pytest.param("root", "PUT", f"projects/{'a' * 25}", {"quota": 1}, 400, "at most 24.",
                 id="long project name"),
    pytest.param("ana", "GET", "projects/_", None, 400, "at most 24.", id="malformed name to read"),
    pytest.param("root", "PUT", "projects/new", {"quota": -1}, 400, "quota is -1",
                 id="negative quota"),
    pytest.param("root", "PUT", "projects/new", {"quota": 1, "build_quota": 2}, 400,
                 "build quota of 2 is above the quota of 1", id="build quota above quota"),
    pytest.param("root", "PUT", "projects/new", {"parent": "nowhere"}, 400, "nowhere",
                 id="unknown parent"),
    pytest.param("root", "DELETE", "projects/nowhere", None, 404, "no project nowhere",
                 id="unknown project"),
    pytest.param("ana", "GET", "workloads/vision/nothing", None, 404, "nothing",
                 id="unknown workload"),
    pytest.param("ana", "GET", "workloads?state=sleeping", None, 400, "state is 'sleeping'",
                 id="unknown state"),
    pytest.param("ana", "GET", "usage?since=yesterday", None, 400, "since is 'yesterday'",
                 id="malformed time"),
    pytest.param("ana", "GET", "usage?user=vic", None, 403, "usage of vic", id="usage of others"),
    pytest.param("ana", "GET", "usage?project=nowhere", None, 404, "no project nowhere",
                 id="usage of an unknown project"),
    pytest.param("ana", "GET", "nothing/here", None, 404, "There is nothing to GET",
                 id="no such route"),
]  # fmt: skip


@pytest.mark.parametrize(("user", "method", "path", "body", "status", "phrase"), INVALID_REQUESTS)
async def test_invalid_api_request_is_refused_in_one_sentence_and_changes_no_project(
    simulated, user, method, path, body, status, phrase
):
    projects = await simulated.platform.cluster.projects()
    async with simulated.http(user) as http:
        reply = await http.request(method, f"api/v1/{path}", json=body)

    assert reply.status_code == status
    assert phrase in f"{reply.json()['detail']} {reply.json()['hint']}"
    assert await simulated.platform.cluster.projects() == projects


async def test_request_body_that_is_not_json_is_refused_as_invalid_json(simulated):
    async with simulated.http("ana") as http:
        reply = await http.post("api/v1/workloads", content=b"{name: exp1}")

    assert (reply.status_code, reply.json()["code"]) == (400, "invalid_json")


@pytest.mark.parametrize(
    ("user", "method", "path", "body"),
    [
        ("ana", "POST", "workloads", '{"name": "e", "command": ["a"], "name": "f"}'),
        ("ana", "POST", "workloads", '{"name": "e", "command": ["a"], "env": {"A": "", "A": ""}}'),
        ("root", "PUT", "projects/new", '{"quota": 2, "quota": 0}'),
        ("root", "PUT", "projects/new", '{"idle_job": {"stop_s": 60, "stop_s": 90}}'),
        ("ana", "POST", "plan", '{"add": [], "add": []}'),
        ("ana", "POST", "workloads/vision/e/scale", '{"workers": 2, "workers": 3}'),
        ("ana", "POST", "workloads/vision/e/exec", '{"command": ["a"], "command": ["b"]}'),
    ],
)
async def test_request_body_with_a_repeated_json_key_is_refused(
    simulated, user, method, path, body
):
    projects = await simulated.platform.cluster.projects()
    async with simulated.http(user, **JSON) as http:
        reply = await http.request(method, f"api/v1/{path}", content=body)

    assert reply.status_code == 400
    assert reply.json()["detail"].startswith("In the body '")
    assert reply.json()["detail"].endswith("' is there twice in one object.")
    assert await simulated.platform.cluster.projects() == projects
    assert await simulated.platform.cluster.workloads() == []


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32-be"])
@pytest.mark.parametrize(
    ("user", "method", "path"),
    [
        ("ana", "POST", "workloads"),
        ("ana", "POST", "plan"),
        ("root", "PUT", "projects/new"),
    ],
)
async def test_request_body_that_is_not_in_utf_8_is_refused(
    simulated, user, method, path, encoding
):
    body = '{"name": "exp1", "command": ["true"]}' if path == "workloads" else "{}"
    async with simulated.http(user, **JSON) as http:
        reply = await http.request(method, f"api/v1/{path}", content=body.encode(encoding))

    assert reply.status_code == 400
    assert reply.json()["detail"] == "The body of the request is not in UTF-8."
    assert await simulated.platform.cluster.workloads() == []


@pytest.mark.parametrize(
    ("model", "name"),
    [
        pytest.param(model, name, id=f"{model.__name__}.{name}")
        for model in sorted(body_models(), key=str)
        for name in number_fields(model)
    ],
)
def test_boolean_in_a_number_field_of_a_request_is_refused(model, name):
    with pytest.raises(ValidationError) as refused:
        model.model_validate({name: True})

    assert name in {error["loc"][0] for error in refused.value.errors()}


async def test_request_body_with_a_byte_order_mark_is_accepted(simulated):
    async with simulated.http("ana", **JSON) as http:
        body = '\ufeff{"name": "exp1", "command": ["true"]}'.encode()
        reply = await http.post("api/v1/workloads", content=body)

    assert reply.status_code == 201, reply.text


async def test_internal_error_returns_incident_number_from_the_log(simulated, caplog):
    async def broken(*_args, **_options):
        message = "secret-token-of-ana"
        raise RuntimeError(message)

    simulated.platform.viewer = broken
    async with simulated.http("ana", **{"X-Request-ID": "mine"}) as http:
        reply = await http.get("api/v1/workloads")

    problem = reply.json()
    incident = problem["detail"].partition("incident ")[2].removesuffix(").")
    assert (reply.status_code, problem["code"]) == (500, "internal_error")
    assert reply.headers["X-Request-ID"] == "mine"
    assert len(incident) == 8
    assert f"incident {incident}" in caplog.text
    assert "secret" not in reply.text
