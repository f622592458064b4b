"""`runai doctor` finds common problems and prints how to repair them."""

from __future__ import annotations

import json
import os
import shutil
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from runai.hub_service.cli.doctor import checks
from runai.hub_service.cli.doctor.gpu_checks import check_mps
from runai.hub_service.cli.doctor.platform_checks import check_groups
from runai.hub_service.client.connection import Connection, config_path, write_config
from runai.hub_service.limits.tiers import MPS_IS_TRIED, NO_MPS_HERE
from runai.hub_service.wire.device_schemas import NodeView

DEVICE = {"device": 0, "uuid": "GPU-0", "name": "A", "memory_mib": 1, "simulated": False}


@pytest.fixture
def remembered(home, free_port):
    """Save a login at a service that does not run."""
    write_config(Connection(f"http://127.0.0.1:{free_port()}/", "token"), config_path())
    return config_path()


def test_on_a_new_computer_only_the_login_is_missing(findings):
    found = findings()

    assert found["packages"]["verdict"] == "ok"
    assert found["JupyterHub"]["verdict"] == "ok"
    assert found["login"]["verdict"] == "failure"
    assert "runai login https://YOUR-HUB" in found["login"]["mend"]


def test_the_library_of_the_same_name_is_found_out(findings, tmp_path, monkeypatch):
    metadata = tmp_path / "runai-0.4.1.dist-info/METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: runai\nVersion: 0.4.1\n")
    monkeypatch.syspath_prepend(tmp_path)

    found = findings()["packages"]

    assert found["verdict"] == "failure"
    assert found["text"].startswith("the library `runai` 0.4.1 of PyPI")
    assert found["mend"].startswith("pip uninstall runai")


def test_a_service_that_is_away_is_a_failure(findings, remembered):
    found = findings()

    assert found["login"]["verdict"] == "ok"
    assert found["service"]["verdict"] == "failure"
    assert "runai up" in found["service"]["mend"]


def test_a_lost_hub_is_a_failure_and_an_address_without_one_is_none(findings, says):
    none = findings()["hub"]
    says({"hub": 503})
    lost = findings()["hub"]

    assert none["verdict"] == "note"
    assert none["text"] == "not looked at: this is the service's own address"
    assert lost["verdict"] == "failure"
    assert lost["text"] == "JupyterHub answers with status 503"


def test_doctor_fails_if_other_accounts_can_read_the_token(findings, remembered):
    remembered.chmod(0o644)

    found = findings()["login"]

    assert found["verdict"] == "failure"
    assert found["mend"] == f"chmod 600 {remembered}"


def test_the_findings_are_readable(runai):
    lines = runai("doctor").stdout.splitlines()

    assert lines[0] == "ok       packages       one provider of `runai`"


def test_another_program_of_our_name_on_the_path_is_found_out(findings, tmp_path, monkeypatch):
    other = tmp_path / "bin/runai"
    other.parent.mkdir()
    shutil.copy("/bin/true", other)
    monkeypatch.setenv("PATH", f"{other.parent}{os.pathsep}{os.environ['PATH']}")

    found = findings()["command"]

    assert found["verdict"] == "failure"
    assert str(other) in found["text"]
    assert "export PATH=" in found["mend"]


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ([None, None], []),
        (["", ""], [("ok", "its limit was seen to hold on GPU 0 of box, GPU 1 of box")]),
        (["", NO_MPS_HERE], [("ok", "its limit was seen to hold on GPU 0 of box")]),
        ([MPS_IS_TRIED], [("note", f"{MPS_IS_TRIED} on GPU 0 of box")]),
        (
            ["its limit is not kept on this machine", ""],
            [
                ("failure", "chosen, but not available on GPU 0 of box: its limit is not kept on"),
                ("ok", "its limit was seen to hold on GPU 1 of box"),
            ],
        ),
    ],
    ids=["not chosen", "held", "a part of a GPU beside", "being tried", "not kept"],
)
def test_mps_is_what_the_service_says_of_each_device(told, expected):
    devices = [
        {**DEVICE, "device": number, "uuid": f"GPU-{number}", "mps": mps}
        for number, mps in enumerate(told)
    ]
    node = NodeView.model_validate({"name": "box", "devices": devices})

    found = [*check_mps([node])]

    assert [f.verdict for f in found] == [verdict for verdict, _ in expected]
    for finding, (_, text) in zip(found, expected, strict=True):
        assert finding.text.startswith(text)


@pytest.mark.parametrize(
    ("mounts", "text"),
    [
        (
            "tmpfs /sys/fs/cgroup tmpfs rw 0 0\ncgroup /sys/fs/cgroup/pids cgroup rw 0 0\n",
            "this machine has no control groups of version 2: ",
        ),
        ("cgroup2 {place}/absent cgroup2 rw 0 0\n", "no control group may be made in {place}/"),
        ("cgroup2 {place} cgroup2 rw 0 0\n", ""),
    ],
    ids=["version 1", "version 2, not delegated", "version 2, delegated"],
)
def test_it_says_what_is_weaker_without_control_groups(tmp_path, mounts, text):
    (tmp_path / "self").mkdir()
    (tmp_path / "self/mounts").write_text(mounts.format(place=tmp_path))
    (tmp_path / "self/cgroup").write_text("0::/user.slice\n")
    (tmp_path / "user.slice").mkdir()

    found = check_groups(tmp_path)

    if text:
        assert found.verdict == "note"
        assert found.text.startswith(text.format(place=tmp_path))
        assert "memory limits of shared devices are soft" in found.text
        assert "Delegate=yes" in found.mend
    else:
        assert found == ("ok", "control groups", "version 2, and ours to make", "")


@pytest.fixture
def says(home, free_port):
    """Serve readiness answers that a test chooses."""
    told: dict[str, Any] = {}

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            ready = self.path.endswith("/ready")
            status = 503 if ready and "because" in told else 200
            self.send_response(told.get("hub", status) if "/hub/" in self.path else status)
            self.end_headers()
            self.wfile.write(json.dumps(told if ready else {}).encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}/"
    write_config(Connection(url, "token"), config_path())
    yield told.update
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("told", "subject", "text", "mend"),
    [
        (
            {"status": "not ready", "because": "database"},
            "service",
            "it cannot store anything: its last write failed",
            "Make room",
        ),
        (
            {"status": "ready", "without": "history"},
            "history",
            "its database (RUNAI_LEDGER) does not answer",
            "Start that PostgreSQL",
        ),
    ],
    ids=["cannot store", "without its history"],
)
def test_a_service_that_lacks_something_is_a_failure_with_the_way_out(
    findings, says, told, subject, text, mend
):
    says(told)

    found = findings()[subject]

    assert found["verdict"] == "failure"
    assert found["text"].startswith(text)
    assert found["mend"].startswith(mend)


def test_a_service_that_is_well_says_so(as_user):
    output = as_user("bob")("doctor").output

    assert "it is well" in output
    assert "history" not in output


def test_a_token_that_the_service_no_longer_knows_is_a_failure(findings, service, monkeypatch):
    monkeypatch.setenv("RUNAI_API_URL", service.url)
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "revoked")

    found = findings()

    assert found["service"]["verdict"] == "ok"
    assert found["token"]["verdict"] == "failure"
    assert found["token"]["text"] == "The token is not known."
    assert "runai login" in found["token"]["mend"]
    assert "devices" not in found  # dependent checks are skipped


@pytest.mark.parametrize(
    ("measured", "verdict"),
    [
        pytest.param({}, "failure", id="silent"),
        pytest.param({"utilized": 0.0, "memory_used_mib": 0}, "ok", id="reports"),
        pytest.param({"memory_used_mib": 0}, "ok", id="MIG before Hopper: memory alone"),
        pytest.param({"utilized": 0.0}, "ok", id="memory that is the machine's: utilization alone"),
    ],
)
def test_an_agent_that_does_not_report_is_a_failure(measured, verdict):
    node = NodeView.model_validate({"name": "box", "devices": [{**DEVICE, **measured}]})

    (found,) = checks.check_agents([node])

    assert found.verdict == verdict


def test_node_that_offers_fewer_gpus_than_it_has_is_a_failure():
    loss = "node gpu-1 offers 0 of 4 GPUs since 14:02 (device plugin or driver)"
    node = NodeView.model_validate({"name": "gpu-1", "devices": [], "loss": loss})

    found = checks.check_devices([node])

    assert (found.verdict, found.text) == ("failure", f"0 on 1 node(s); {loss}")
