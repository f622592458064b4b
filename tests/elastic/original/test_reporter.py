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
        super().__init__(("127.0.0.1", 0), _Pushed)
        self.status, self.pushed, self.let_in = 200, [], threading.Event()
        self.let_in.set()

    @property
    def address(self):
        return f"127.0.0.1:{self.server_port}"


class _Pushed(BaseHTTPRequestHandler):
    server: Gateway

    def do_POST(self):
        self.server.let_in.wait()
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
        server.let_in.set()
        server.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
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


METRIC = """\
# TYPE reporter_push_gateway_metric_loss gauge
reporter_push_gateway_metric_loss{metric_name="loss",push_gateway_type="metric"} 0.5
"""
PARAMETER = """\
# TYPE reporter_push_gateway_parameter_optimizer_name gauge
reporter_push_gateway_parameter_optimizer_name{param_name="optimizer_name",\
param_value="Adam",push_gateway_type="parameter"} 1.0
"""


@pytest.mark.parametrize(
    ("report", "text"),
    [
        pytest.param(("loss", 0.5, ReportType.metric), METRIC, id="metric"),
        pytest.param(("optimizer_name", "Adam", ReportType.parameter), PARAMETER, id="parameter"),
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
def test_a_gateway_is_sent_the_originals_names_and_labels(gateway, report, text):
    push(*report)

    assert [("/metrics/job/reporter_pod_info/podUUID/pod-7", text)] == gateway.pushed


def test_a_pod_with_a_slash_in_its_name_is_written_as_the_gateway_asks(gateway, monkeypatch):
    monkeypatch.delenv("podUUID")
    monkeypatch.setenv("RUNAI_WORKER", "vision/bob-0")
    push("loss", 0.5, ReportType.metric)

    assert gateway.pushed[0][0].endswith("/podUUID@base64/dmlzaW9uL2JvYi0w")


def test_functions_report_in_the_background_until_finished(gateway):
    gateway.let_in.clear()
    for epoch in range(100):
        runai.reporter.reportMetric("epoch", epoch)  # does not wait for the gateway
    runai.reporter.reportParameter("optimizer_name", "Adam")
    gateway.let_in.set()
    runai.reporter.finish()

    sent = "".join(body for _, body in gateway.pushed)
    assert sent.count('metric_name="epoch",push_gateway_type="metric"} 99.0') == 1
    assert PARAMETER in sent


def test_a_reporter_ends_its_block_when_all_is_sent(gateway):
    with runai.reporter.Reporter() as reporter:
        reporter.reportMetric("loss", 0.5)
        reporter.reportParameter("optimizer_name", "Adam")
        reporter.send(("step", 3, ReportType.metric))

    assert not reporter.is_alive()
    sent = "".join(body for _, body in gateway.pushed)
    assert all(part in sent for part in (METRIC, PARAMETER, 'metric_name="step"'))


def test_what_a_forked_child_reports_is_sent_by_the_child(gateway):
    with runai.reporter.Reporter() as reporter:
        if not (child := os.fork()):
            reporter.reportMetric("loss", 0.5)
            reporter.finish()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0

    assert METRIC in "".join(body for _, body in gateway.pushed)


def test_no_more_names_wait_than_memory_is_for(gateway, monkeypatch):
    monkeypatch.setattr("runai.reporter.reporting.MOST_NAMES", 3)
    reporter = runai.reporter.Reporter()  # not started: as if the gateway were slow
    for number in range(10):
        reporter.reportMetric(f"m{number}", number)
    reporter.start(daemon=False)
    reporter.finish()

    assert "".join(body for _, body in gateway.pushed).count("# TYPE") == 3


def test_a_gateway_that_fails_three_times_is_left_alone_and_training_goes_on(gateway, caplog):
    gateway.status = 503
    for _ in range(5):
        push("loss", 0.5, ReportType.metric)

    assert 3 == push.failures == len(gateway.pushed)
    assert "push gateway did not take a report" in caplog.text


def test_failures_that_are_not_in_a_row_are_forgotten(gateway):
    for status in (503, 503, 200, 503):
        gateway.status = status
        push("loss", 0.5, ReportType.metric)

    assert push.failures == 1


def test_reporter_drops_a_metric_that_is_no_number_and_warns_once(gateway, caplog):
    for _ in range(2):
        push("loss", "high", ReportType.metric)

    assert gateway.pushed == []
    assert ["'loss' is not reported: it must be a number, not str" in caplog.text, 1] == [
        True,
        len(caplog.records),
    ]


def test_a_job_of_the_platform_writes_its_progress(progress):
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


def test_a_broken_file_of_progress_is_begun_anew(progress, tmp_path):
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
            eventually(lambda: _answers(f"http://{address}/-/ready"))
            monkeypatch.setenv("reporterGatewayURL", f"http://{address}")
            monkeypatch.setenv("podUUID", "vision/bob-0")
            yield f"http://{address}"
        finally:
            process.terminate()


def _answers(url):
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(url, timeout=60).is_success
    return False


def test_the_push_gateway_of_prometheus_takes_it(real_gateway):
    with runai.reporter.Reporter() as reporter:
        reporter.reportMetric("loss", 0.5)
        reporter.reportParameter("optimizer_name", 'a "quoted" one')
    shown = httpx.get(f"{real_gateway}/metrics", timeout=60).text

    assert (
        'reporter_push_gateway_metric_loss{instance="",job="reporter_pod_info",metric_name="loss",'
        'podUUID="vision/bob-0",push_gateway_type="metric"} 0.5'
    ) in shown
    assert 'param_value="a \\"quoted\\" one"' in shown
