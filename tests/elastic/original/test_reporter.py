"""`runai.reporter`: a training's reports arrive, and never block the training."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest

import runai.reporter
from ports import free_port
from runai.reporter import ReportType, report_promethues
from waiting import eventually

push = report_promethues.push


class Gateway(ThreadingHTTPServer):
    """A push gateway that records requests, and refuses them if configured to."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _PushHandler)
        self.status, self.pushed, self.accepting = 200, [], threading.Event()
        self.accepting.set()

    @property
    def address(self):
        return f"127.0.0.1:{self.server_port}"


class _PushHandler(BaseHTTPRequestHandler):
    server: Gateway

    def do_POST(self):
        self.server.accepting.wait()
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.server.pushed.append((self.path, body))
        self.send_response(self.server.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def gateway(monkeypatch):
    with Gateway() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv("reporterGatewayURL", server.address)
        monkeypatch.setenv("podUUID", "pod-7")
        yield server
        server.accepting.set()
        server.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def reset_reporter(monkeypatch):
    """Reset the reporter's state; the test runs outside the platform unless it sets that up."""
    monkeypatch.setattr("runai.utils.notices._LOGGED", set())
    monkeypatch.delenv("RUNAI_CHECKPOINT_DIR", raising=False)
    monkeypatch.setattr(push, "failures", 0)
    yield
    runai.reporter.finish()


@pytest.fixture
def progress(tmp_path, monkeypatch):
    """Run as a job of the platform; return a function that reads its reports."""
    monkeypatch.setenv("RUNAI_CHECKPOINT_DIR", str(tmp_path))
    return lambda: json.loads((tmp_path / "progress.json").read_text(encoding="utf-8"))


METRIC_TEXT = """\
# TYPE reporter_push_gateway_metric_loss gauge
reporter_push_gateway_metric_loss{metric_name="loss",push_gateway_type="metric"} 0.5
"""
PARAMETER_TEXT = """\
# TYPE reporter_push_gateway_parameter_optimizer_name gauge
reporter_push_gateway_parameter_optimizer_name{param_name="optimizer_name",\
param_value="Adam",push_gateway_type="parameter"} 1.0
"""


@pytest.mark.parametrize(
    ("report", "text"),
    [
        pytest.param(("loss", 0.5, ReportType.metric), METRIC_TEXT, id="metric"),
        pytest.param(
            ("optimizer_name", "Adam", ReportType.parameter), PARAMETER_TEXT, id="parameter"
        ),
        pytest.param(
            ("val loss", float("-inf"), ReportType.metric),
            "# TYPE reporter_push_gateway_metric_val_loss gauge\n"
            'reporter_push_gateway_metric_val_loss{metric_name="val loss",'
            'push_gateway_type="metric"} -Inf\n',
            id="odd-name-and-number",
        ),
        pytest.param(
            ("path", 'a"b\\c', ReportType.parameter),
            "# TYPE reporter_push_gateway_parameter_path gauge\n"
            'reporter_push_gateway_parameter_path{param_name="path",param_value="a\\"b\\\\c",'
            'push_gateway_type="parameter"} 1.0\n',
            id="escaped",
        ),
    ],
)
def test_push_gateway_receives_the_original_metric_names_and_labels(gateway, report, text):
    push(*report)

    assert [("/metrics/job/reporter_pod_info/podUUID/pod-7", text)] == gateway.pushed


def test_pod_name_with_a_slash_is_sent_base64_encoded(gateway, monkeypatch):
    monkeypatch.delenv("podUUID")
    monkeypatch.setenv("RUNAI_WORKER", "vision/bob-0")
    push("loss", 0.5, ReportType.metric)

    assert gateway.pushed[0][0].endswith("/podUUID@base64/dmlzaW9uL2JvYi0w")


def test_report_functions_send_in_the_background_until_finish_is_called(gateway):
    gateway.accepting.clear()
    for epoch in range(100):
        runai.reporter.reportMetric("epoch", epoch)  # does not wait for the gateway
    runai.reporter.reportParameter("optimizer_name", "Adam")
    gateway.accepting.set()
    runai.reporter.finish()

    sent = "".join(body for _, body in gateway.pushed)
    assert sent.count('metric_name="epoch",push_gateway_type="metric"} 99.0') == 1
    assert PARAMETER_TEXT in sent


def test_reporter_block_ends_after_all_reports_are_sent(gateway):
    with runai.reporter.Reporter() as reporter:
        reporter.reportMetric("loss", 0.5)
        reporter.reportParameter("optimizer_name", "Adam")
        reporter.send(("step", 3, ReportType.metric))

    assert not reporter.is_alive()
    sent = "".join(body for _, body in gateway.pushed)
    assert all(part in sent for part in (METRIC_TEXT, PARAMETER_TEXT, 'metric_name="step"'))


def test_forked_child_of_a_training_sends_its_metrics(gateway):
    with runai.reporter.Reporter() as reporter:
        if not (child := os.fork()):
            reporter.reportMetric("loss", 0.5)
            reporter.finish()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0

    assert METRIC_TEXT in "".join(body for _, body in gateway.pushed)


def test_number_of_queued_metric_names_is_limited(gateway, monkeypatch):
    monkeypatch.setattr("runai.reporter.reporting.MOST_NAMES", 3)
    reporter = runai.reporter.Reporter()  # not started: as if the gateway were slow
    for number in range(10):
        reporter.reportMetric(f"m{number}", number)
    reporter.start(daemon=False)
    reporter.finish()

    assert "".join(body for _, body in gateway.pushed).count("# TYPE") == 3


def test_gateway_that_fails_three_times_is_not_called_again(gateway, caplog):
    gateway.status = 503
    for _ in range(5):
        push("loss", 0.5, ReportType.metric)

    assert 3 == push.failures == len(gateway.pushed)
    assert "push gateway did not take a report" in caplog.text


def test_successful_push_resets_the_failure_count(gateway):
    for status in (503, 503, 200, 503):
        gateway.status = status
        push("loss", 0.5, ReportType.metric)

    assert push.failures == 1


def test_reporter_drops_a_metric_that_is_no_number_and_warns_once(gateway, caplog):
    for _ in range(2):
        push("loss", "high", ReportType.metric)

    assert gateway.pushed == []
    assert "'loss' is not reported: it must be a number, not str" in caplog.text
    assert len(caplog.records) == 1


def test_platform_job_writes_its_progress_file(progress):
    runai.reporter.reportMetric("epoch", 3)
    runai.reporter.reportMetric("overall_epochs", 10)
    runai.reporter.finish()
    runai.reporter.reportMetric("epoch", 4)
    runai.reporter.reportParameter("optimizer_name", "Adam")
    runai.reporter.finish()

    assert progress() == {
        "metrics": {"epoch": 4.0, "overall_epochs": 10.0},
        "parameters": {"optimizer_name": "Adam"},
    }


def test_broken_progress_file_is_replaced(progress, tmp_path):
    (tmp_path / "progress.json").write_text("{", encoding="utf-8")
    push("epoch", 1, ReportType.metric)

    assert progress()["metrics"] == {"epoch": 1.0}


def test_reporter_without_gateway_warns_once(monkeypatch, caplog):
    monkeypatch.delenv("reporterGatewayURL", raising=False)
    for _ in range(2):
        push("loss", 0.5, ReportType.metric)

    assert caplog.text.count("nothing is reported") == 1


@pytest.fixture
def real_gateway(tmp_path, monkeypatch):
    program = shutil.which("prometheus-pushgateway") or shutil.which("pushgateway")
    if program is None:
        pytest.skip("no push gateway (Debian: apt install prometheus-pushgateway)")
    address = f"127.0.0.1:{free_port()}"
    with subprocess.Popen(
        [program, f"--web.listen-address={address}"], stderr=subprocess.DEVNULL
    ) as process:
        try:
            eventually(lambda: _is_ready(f"http://{address}/-/ready"))
            monkeypatch.setenv("reporterGatewayURL", f"http://{address}")
            monkeypatch.setenv("podUUID", "vision/bob-0")
            yield f"http://{address}"
        finally:
            process.terminate()


def _is_ready(url):
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(url, timeout=60).is_success
    return False


def test_prometheus_push_gateway_accepts_the_reports(real_gateway):
    with runai.reporter.Reporter() as reporter:
        reporter.reportMetric("loss", 0.5)
        reporter.reportParameter("optimizer_name", 'a "quoted" one')
    exposition = httpx.get(f"{real_gateway}/metrics", timeout=60).text

    assert (
        'reporter_push_gateway_metric_loss{instance="",job="reporter_pod_info",metric_name="loss",'
        'podUUID="vision/bob-0",push_gateway_type="metric"} 0.5'
    ) in exposition
    assert 'param_value="a \\"quoted\\" one"' in exposition
