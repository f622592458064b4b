"""Requests are answered while a thread schedules thousands of workloads; on Kubernetes, too."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from runai.hub_service.server.background_work import SWITCH_S
from runai.hub_service.server.settings import Config
from runai.hub_service.wire.errors import RunaiError

kubernetes_service = pytest.importorskip("runai.hub_service.server.kubernetes_service")


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    before = sys.getswitchinterval()
    yield
    sys.setswitchinterval(before)


async def test_a_thread_that_computes_lets_go_of_the_interpreter_soon(tmp_path, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    # pytest handles the signals itself.
    monkeypatch.setattr(kubernetes_service, "on_signal", lambda _act: None)
    monkeypatch.setattr(kubernetes_service, "collect_seldom", lambda: None)
    environment = {"RUNAI_CLUSTER": "kubernetes", "RUNAI_HUB_TOKEN": "a-token"}
    config = Config.from_environment({"RUNAI_DATA_DIR": str(tmp_path), **environment})
    assert config.kubernetes is not None

    with pytest.raises(RunaiError, match="no Kubernetes cluster"):
        await kubernetes_service.serve_kubernetes(config, config.kubernetes)

    assert sys.getswitchinterval() == pytest.approx(SWITCH_S)
