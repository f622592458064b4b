"""The spawner's use of a real service: admit, wait with a reason, attach, release."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from in_process_service import running_service
from runai.hub_service.api.auth.permissions import Actor
from runai.hub_service.client import AsyncClient
from runai.hub_service.model.records import ProjectSpec
from runai.hub_service.scheduler.model.quantity import MilliGpu
from runai.hub_service.wire.errors import NotFound
from runai.hub_service.wire.program_schemas import ProcessReport
from runai.hub_service.wire.workload_request import SubmitRequest
from runai.spawner.admission import Admission, SessionRefused
from runai.spawner.amount import parse_amount
from runai.spawner.local import RunaiLocalSpawner
from runai.spawner.session_request import SessionRequest
from unix_accounts import accounts

Submission = Callable[..., SubmitRequest]
TIMEOUT_S = 60.0


@pytest.fixture
def messages() -> list[str]:
    return []


@pytest.fixture
def admission(hub_client: AsyncClient, messages: list[str]) -> Admission:
    return Admission(hub_client, messages.append)


async def admit_session(client: AsyncClient, request: SubmitRequest) -> Admission:
    """Submit a session that is granted at once, so that later ones wait."""
    admission = Admission(client, lambda _sentence: None)
    await admission.admit(request, within_s=TIMEOUT_S)
    return admission


async def test_session_gets_a_free_gpu_at_once_and_its_device_in_the_environment(
    admission: Admission, submission: Submission, messages: list[str]
):
    detail = await admission.admit(submission("ana", "0.5"), within_s=TIMEOUT_S)
    environment = await admission.environment()

    assert (detail.id, detail.user, detail.state) == ("vision/lab-ana", "ana", "starting")
    assert messages == ["Granted: 0.5 of GPU 0 on box"]
    assert environment["CUDA_VISIBLE_DEVICES"] == detail.workers[0].devices[0].uuid
    assert environment["RUNAI_WORKLOAD"] == "vision/lab-ana"


async def test_session_without_a_gpu_is_granted_and_sees_none(
    admission: Admission, submission: Submission, messages: list[str]
):
    await admission.admit(submission("ana", "0"), within_s=TIMEOUT_S)
    environment = await admission.environment()

    assert environment["CUDA_VISIBLE_DEVICES"] == ""
    assert messages == ["Starting without a GPU"]


async def test_session_runs_once_its_process_is_attached(
    admission: Admission, submission: Submission, hub_client: AsyncClient
):
    await admission.admit(submission("ana", "0.5"), within_s=TIMEOUT_S)
    process = await asyncio.create_subprocess_exec("sleep", "600", start_new_session=True)
    created = psutil.Process(process.pid).create_time()
    await admission.attach(ProcessReport(pid=process.pid, created=created))
    running = await hub_client.workload(admission.workload)
    process.kill()
    await process.wait()

    assert running.state == "running"


async def test_waiting_session_has_the_reason_and_gets_the_gpu_once_it_is_free(
    admission: Admission,
    submission: Submission,
    hub_client: AsyncClient,
    messages: list[str],
    eventually_async: Callable[..., Any],
):
    session_of_bo = await admit_session(hub_client, submission("bo", "1"))
    waiting = asyncio.create_task(admission.admit(submission("ana", "1"), within_s=TIMEOUT_S))
    await eventually_async(lambda: len(messages) == 1)
    await session_of_bo.release()
    detail = await waiting

    assert messages == [
        "Waiting: the build quota of vision is 1.5 GPUs, and its notebooks hold 1: bo 1",
        "Granted: 1 of GPU 0 on box",
    ]
    assert detail.allocated == 1


async def test_admission_timeout_raises_the_waiting_reason(
    admission: Admission,
    submission: Submission,
    hub_client: AsyncClient,
    messages: list[str],
    monkeypatch: pytest.MonkeyPatch,
):
    await admit_session(hub_client, submission("bo", "1"))
    # The clock passes the 30 seconds as soon as the reason is known, and not before.
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(loop, "time", lambda: time.monotonic() + 30 * len(messages))
    with pytest.raises(SessionRefused) as refused:
        await admission.admit(submission("ana", "1"), within_s=30)

    assert refused.value.jupyterhub_message == (
        "No GPU was granted within 30 seconds: the build quota of vision is 1.5 GPUs, and its"
        " notebooks hold 1: bo 1."
        " Ask for less, or try again later."
    )


async def test_session_deleted_while_it_waits_is_refused(
    admission: Admission,
    submission: Submission,
    hub_client: AsyncClient,
    messages: list[str],
    eventually_async: Callable[..., Any],
):
    await admit_session(hub_client, submission("bo", "1"))
    waiting = asyncio.create_task(admission.admit(submission("ana", "1"), within_s=TIMEOUT_S))
    await eventually_async(lambda: len(messages) == 1)
    await hub_client.delete("vision/lab-ana")
    with pytest.raises(SessionRefused) as refused:
        await waiting

    assert refused.value.jupyterhub_message == "The session was deleted while it waited."


async def test_refused_session_has_the_message_of_the_service(
    admission: Admission, submission: Submission
):
    with pytest.raises(SessionRefused) as refused:
        await admission.admit(submission("out", "0.5"), within_s=TIMEOUT_S)

    assert "out is not a member of project vision." in refused.value.jupyterhub_message
    assert admission.workload == ""


async def test_admission_replaces_an_earlier_session_of_the_user(
    admission: Admission, submission: Submission, hub_client: AsyncClient
):
    await admit_session(hub_client, submission("ana", "0.25"))
    detail = await admission.admit(submission("ana", "1"), within_s=TIMEOUT_S)

    assert detail.allocated == 1
    assert [workload.id for workload in await hub_client.workloads()] == ["vision/lab-ana"]


async def test_admission_never_replaces_a_workload_of_a_different_user(
    admission: Admission, submission: Submission, hub_client: AsyncClient
):
    session_of_bo = submission("bo", "0.25").model_copy(update={"name": "lab-ana"})
    await admit_session(hub_client, session_of_bo)
    with pytest.raises(SessionRefused) as refused:
        await admission.admit(submission("ana", "0.5"), within_s=TIMEOUT_S)

    assert "taken by a session of bo" in refused.value.jupyterhub_message
    assert (await hub_client.workload("vision/lab-ana")).user == "bo"


async def test_session_release_deletes_the_session_and_may_be_repeated(
    admission: Admission,
    submission: Submission,
    hub_client: AsyncClient,
    eventually_async: Callable[..., Any],
):
    await admission.admit(submission("ana", "0.5"), within_s=TIMEOUT_S)

    assert await admission.release()
    await eventually_async(lambda: _is_deleted(hub_client))
    assert await admission.release()


async def test_session_release_without_a_reachable_service_returns_false(
    free_port: Callable[[], int],
):
    url = f"http://127.0.0.1:{free_port()}/services/runai/"
    async with AsyncClient(url, "token", patience_s=0) as client:
        is_released = await Admission(client, lambda _: None, "vision/lab-ana").release()

    assert not is_released


async def test_attach_to_a_deleted_session_is_refused(
    admission: Admission, submission: Submission, hub_client: AsyncClient
):
    await admission.admit(submission("ana", "0.5"), within_s=TIMEOUT_S)
    await hub_client.delete(admission.workload)
    own_process = ProcessReport(pid=os.getpid(), created=psutil.Process().create_time())
    with pytest.raises(SessionRefused):
        await admission.attach(own_process)


async def _is_deleted(client: AsyncClient) -> bool:
    try:
        await client.workload("vision/lab-ana")
    except NotFound:
        return True
    return False


def test_last_lines_of_a_server_are_displayed_as_text_and_not_logged():
    refused = SessionRefused.of_end("exit <1>", "<b>why</b>\n100 %s", hint="A file may say more.")

    sentence = "Your server ended before it answered (exit <1>)."
    assert sentence in str(refused)
    assert "why" not in str(refused)
    assert refused.jupyterhub_message == f"{sentence} Its last lines:\n<b>why</b>\n100 %s"
    assert "(exit &lt;1&gt;)." in refused.jupyterhub_html_message
    assert "&lt;b&gt;why&lt;/b&gt;\n100 %s</pre>" in refused.jupyterhub_html_message
    assert refused.status_code < 500


@pytest.mark.parametrize(("project_umask", "server_umask"), [("", "007"), ("027", "027")])
async def test_server_has_the_umask_of_its_account_unless_its_project_has_one(
    tmp_path: Path, project_umask: str, server_umask: str
):
    vision = ProjectSpec("vision", quota=MilliGpu(1000), members=("ana",), umask=project_umask)
    actors = [Actor("hub", kind="hub"), Actor("ana")]
    data_dir = tmp_path / "service"
    spawner = RunaiLocalSpawner(user=SimpleNamespace(name="ana"), system_users=True)
    with accounts() as unix, running_service(data_dir, actors, [vision], gpus=1) as service:
        unix.answer("ana", unix.entry("ana", umask="007"))
        spawner._start_account = await unix.directory(data_dir).account("ana")
        assert service.platform is not None
        service.platform.accounts = unix.directory(data_dir)
        assert spawner._umask == "007"  # the account's, before a project is known
        async with AsyncClient(service.url, service.tokens["hub"], patience_s=1) as client:
            admission = Admission(client, lambda _sentence: None)
            await spawner._admit(admission, SessionRequest("vision", parse_amount("0.5")))
            assert (await client.workload(spawner.workload)).umask == server_umask
            assert spawner._umask == server_umask
            await admission.release()
    spawner.clear_state()
    assert spawner._umask == "007"
