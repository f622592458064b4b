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
def stored_login(home, free_port):
    """Save a login at a service that does not run."""
    write_config(Connection(f"http://127.0.0.1:{free_port()}/", "token"), config_path())
    return config_path()


def test_doctor_on_a_new_computer_reports_only_the_missing_login(findings):
    report = findings()

    assert report["packages"]["verdict"] == "ok"
    assert report["JupyterHub"]["verdict"] == "ok"
    assert report["login"]["verdict"] == "failure"
    assert "runai login https://YOUR-HUB" in report["login"]["mend"]


def test_doctor_detects_the_pypi_library_named_runai(findings, tmp_path, monkeypatch):
    metadata = tmp_path / "runai-0.4.1.dist-info/METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: runai\nVersion: 0.4.1\n")
    monkeypatch.syspath_prepend(tmp_path)

    finding = findings()["packages"]

    assert finding["verdict"] == "failure"
    assert finding["text"].startswith("the library `runai` 0.4.1 of PyPI")
    assert finding["mend"].startswith("pip uninstall runai")


def test_doctor_fails_if_the_service_is_unreachable(findings, stored_login):
    report = findings()

    assert report["login"]["verdict"] == "ok"
    assert report["service"]["verdict"] == "failure"
    assert "runai up" in report["service"]["mend"]


def test_doctor_fails_on_a_failing_hub_and_only_notes_a_missing_hub(findings, set_health):
    missing_hub = findings()["hub"]
    set_health({"hub": 503})
    failing_hub = findings()["hub"]

    assert missing_hub["verdict"] == "note"
    assert missing_hub["text"] == "not looked at: this is the service's own address"
    assert failing_hub["verdict"] == "failure"
    assert failing_hub["text"] == "JupyterHub answers with status 503"


def test_doctor_fails_if_other_accounts_can_read_the_token(findings, stored_login):
    stored_login.chmod(0o644)

    finding = findings()["login"]

    assert finding["verdict"] == "failure"
    assert finding["mend"] == f"chmod 600 {stored_login}"


def test_doctor_prints_an_aligned_line_for_each_finding(runai):
    lines = runai("doctor").stdout.splitlines()

    assert lines[0] == "ok       packages       one provider of `runai`"


def test_doctor_detects_a_foreign_program_named_runai_on_the_path(findings, tmp_path, monkeypatch):
    foreign_program = tmp_path / "bin/runai"
    foreign_program.parent.mkdir()
    shutil.copy("/bin/true", foreign_program)
    monkeypatch.setenv("PATH", f"{foreign_program.parent}{os.pathsep}{os.environ['PATH']}")

    finding = findings()["command"]

    assert finding["verdict"] == "failure"
    assert str(foreign_program) in finding["text"]
    assert "export PATH=" in finding["mend"]


@pytest.mark.parametrize(
    ("mps_states", "expected"),
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
    ids=[
        *("MPS not chosen", "limit enforced", "limit enforced, beside a MIG device"),
        *("limit being tried", "limit not enforced on one of two GPUs"),
    ],
)
def test_doctor_reports_the_mps_state_of_each_device(mps_states, expected):
    devices = [
        {**DEVICE, "device": number, "uuid": f"GPU-{number}", "mps": mps}
        for number, mps in enumerate(mps_states)
    ]
    node = NodeView.model_validate({"name": "box", "devices": devices})

    mps_findings = [*check_mps([node])]

    assert [f.verdict for f in mps_findings] == [verdict for verdict, _ in expected]
    for finding, (_, text) in zip(mps_findings, expected, strict=True):
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
def test_doctor_notes_soft_memory_limits_without_control_groups_version_2(tmp_path, mounts, text):
    (tmp_path / "self").mkdir()
    (tmp_path / "self/mounts").write_text(mounts.format(place=tmp_path))
    (tmp_path / "self/cgroup").write_text("0::/user.slice\n")
    (tmp_path / "user.slice").mkdir()

    finding = check_groups(tmp_path)

    if text:
        assert finding.verdict == "note"
        assert finding.text.startswith(text.format(place=tmp_path))
        assert "memory limits of shared devices are soft" in finding.text
        assert "Delegate=yes" in finding.mend
    else:
        assert finding == ("ok", "control groups", "version 2, and ours to make", "")


@pytest.fixture
def set_health(home, free_port):
    """Serve readiness answers that a test chooses."""
    reply: dict[str, Any] = {}

    class HealthHandler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            ready = self.path.endswith("/ready")
            status = 503 if ready and "because" in reply else 200
            self.send_response(reply.get("hub", status) if "/hub/" in self.path else status)
            self.end_headers()
            self.wfile.write(json.dumps(reply if ready else {}).encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), HealthHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}/"
    write_config(Connection(url, "token"), config_path())
    yield reply.update
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("health", "subject", "text", "mend"),
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
    ids=["database not writable", "history database away"],
)
def test_doctor_names_the_remedy_if_the_service_cannot_use_its_database(
    findings, set_health, health, subject, text, mend
):
    set_health(health)

    finding = findings()[subject]

    assert finding["verdict"] == "failure"
    assert finding["text"].startswith(text)
    assert finding["mend"].startswith(mend)


def test_doctor_reports_a_healthy_service(as_user):
    output = as_user("bob")("doctor").output

    assert "it is well" in output
    assert "history" not in output


def test_doctor_fails_on_a_revoked_token(findings, service, monkeypatch):
    monkeypatch.setenv("RUNAI_API_URL", service.url)
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "revoked")

    report = findings()

    assert report["service"]["verdict"] == "ok"
    assert report["token"]["verdict"] == "failure"
    assert report["token"]["text"] == "The token is not known."
    assert "runai login" in report["token"]["mend"]
    assert "devices" not in report  # dependent checks are skipped


@pytest.mark.parametrize(
    ("measurements", "verdict"),
    [
        pytest.param({}, "failure", id="no measurements"),
        pytest.param({"utilized": 0.0, "memory_used_mib": 0}, "ok", id="utilization and memory"),
        pytest.param({"memory_used_mib": 0}, "ok", id="memory only (MIG before Hopper)"),
        pytest.param({"utilized": 0.0}, "ok", id="utilization only (memory of the machine)"),
    ],
)
def test_doctor_fails_if_an_agent_reports_no_measurements(measurements, verdict):
    node = NodeView.model_validate({"name": "box", "devices": [{**DEVICE, **measurements}]})

    (finding,) = checks.check_agents([node])

    assert finding.verdict == verdict


def test_doctor_fails_if_a_node_offers_fewer_gpus_than_it_has():
    loss = "node gpu-1 offers 0 of 4 GPUs since 14:02 (device plugin or driver)"
    node = NodeView.model_validate({"name": "gpu-1", "devices": [], "loss": loss})

    finding = checks.check_devices([node])

    assert (finding.verdict, finding.text) == ("failure", f"0 on 1 node(s); {loss}")
