"""What `runai doctor` says of a service as it runs: one whose settings only the service knows."""

from __future__ import annotations

import json

from click.testing import CliRunner

from runai.hub_service.cli import cli
from service_process import TOKEN, Service


def examined(service: Service) -> dict[str, dict[str, str]]:
    """Return the findings by subject, of a person whose environment knows the address alone."""
    known = {"RUNAI_API_URL": service.client.url, "JUPYTERHUB_API_TOKEN": TOKEN}
    told = CliRunner(env=known).invoke(cli, ["doctor", "-o", "json"], prog_name="runai").stdout
    return {finding["subject"]: finding for finding in json.loads(told)}


def test_mps_that_was_chosen_for_the_service_and_cannot_be_had_is_a_failure(service, monkeypatch):
    monkeypatch.delenv("RUNAI_GPU_SHARING", raising=False)
    service.environment["RUNAI_GPU_SHARING"] = "mps"
    service.start()

    found = examined(service)["MPS"]

    assert found["verdict"] == "failure"
    assert found["text"].startswith("chosen, and cannot be had on GPU 0 of ")
    assert found["text"].endswith("no device here can have it; workloads take turns there")
    assert "--gpu-sharing timeslice" in found["mend"]


def test_of_sharing_that_nobody_chose_nothing_is_said(service):
    service.start()

    assert "MPS" not in examined(service)
