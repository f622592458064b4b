"""The spawn form of a hub without an answer of its GPU service."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from in_process_service import RunningService
from ports import free_port
from runai.spawner.local import RunaiLocalSpawner

PROMISES = ("moment", "soon", "few seconds")


@pytest.mark.parametrize(
    "url",
    ["", "{service}", "http://127.0.0.1:{port}/services/runai/", "http://nowhere.invalid/"],
    ids=["no address", "token refused", "nothing listens", "unknown host"],
)
async def test_spawn_form_without_a_service_answer_promises_no_gpu_and_names_the_log(
    service: RunningService, caplog: pytest.LogCaptureFixture, url: str
):
    spawner = RunaiLocalSpawner(
        user=SimpleNamespace(name="ana", groups=[], admin=False),
        service_url=url.format(service=service.url, port=free_port()),
        service_token="of another platform",
        user_options={},
    )

    html = await spawner._form()

    assert "The GPU service does not answer: only a session without a GPU can start." in html
    assert not any(promise in html for promise in PROMISES)
    (log_line,) = [
        message for message in caplog.messages if message.startswith("The service did not answer")
    ]
    request_id = log_line.partition("[")[2].rstrip("]")
    assert request_id in html
