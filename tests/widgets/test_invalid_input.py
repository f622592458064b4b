"""Bad input in a notebook: one sentence with the way out, no traceback, nothing half-made."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from in_process_service import RunningService, running_service
from runai.hub_service.api.auth.permissions import Actor
from runai.hub_service.client import Client
from runai.hub_service.model.records import ProjectSpec
from runai.hub_service.scheduler.model.quantity import MilliGpu
from runai.hub_service.wire.workload_request import SubmitRequest


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    """Run one service with one job for all tests: mistakes change nothing."""
    projects = [ProjectSpec("vision", quota=MilliGpu(2500), members=("bob",))]
    data = tmp_path_factory.mktemp("service")
    with running_service(data, [Actor("bob")], projects, gpus=5) as running:
        with Client(running.url, running.tokens["bob"]) as client:
            client.submit(SubmitRequest(name="taken", command=["true"], workdir="/"))
        yield running


@pytest.mark.parametrize(
    ("cell", "sentence"),
    [
        pytest.param(
            "%runai_submit helo.py",
            "There is no file helo.py in {folder}. Did you mean hello.py?",
            id="missing script",
        ),
        pytest.param(
            "%runai_submit", "Name a script: %runai_submit train.py --gpus 1", id="no script"
        ),
        pytest.param(
            "%runai_submit hello.py -p visoin",
            "There is no project visoin. Yours: vision.",
            id="refused by the service",
        ),
        pytest.param("%runai_submit hello.py --nonsense", "--nonsense", id="unknown option"),
        pytest.param(
            "%runai_submit hello.py --set a=1", "--set is for notebooks", id="setting of a script"
        ),
        pytest.param("%runai_submit hello.py --name 'x", "quotation", id="open quotation"),
        pytest.param("%runai_logs takne", "Did you mean taken?", id="unknown job"),
        pytest.param("%runai_describe", "name", id="no job name"),
        pytest.param("%%runai_submit hello.py\nx", "hello.py has no place", id="cell and script"),
        pytest.param("%%runai_submit\nx = ", "The cell is not a Python program", id="no Python"),
    ],
)
def test_magic_mistake_prints_one_sentence_without_traceback(notebook, folder, cell, sentence):
    bob = notebook("bob")
    result = bob(cell)

    assert result.value is None
    lines = (result.out + result.err).strip().splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("UsageError: ")
    assert sentence.format(folder=folder) in lines[0]
    assert bob("%runai_list").value.count("vision") == 1


def test_python_api_mistake_prints_one_sentence_without_traceback(notebook):
    bob = notebook("bob")

    result = bob("from runai.widgets import submit\nsubmit('helo.py')")

    lines = (result.out + result.err).strip().splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("InvalidRequest: There is no file helo.py in ")
