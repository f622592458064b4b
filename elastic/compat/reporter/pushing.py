"""Targets of reports: the job's file, read by the platform, and a Prometheus push gateway.

The environment selects them: `RUNAI_CHECKPOINT_DIR`; `reporterGatewayURL` and `podUUID` of the
original.
"""

from __future__ import annotations

import enum
import json
import os
import re
import socket
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote

import httpx

from runai.utils.notices import notice

GROUPING_KEY: Final = "podUUID"
GATEWAY_URL_KEY: Final = "reporterGatewayURL"
PUSH_GATEWAY_JOB_NAME: Final = "reporter_pod_info"
PROGRESS_FILE: Final = "progress.json"
RETRIES: Final = 3
"""Consecutive failures after which nothing is pushed to the gateway."""
TIMEOUT_S: Final = 10.0

_NAMELESS = re.compile(r"[^a-zA-Z0-9_:]")
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class ReportType(enum.Enum):
    """The kind of a report."""

    metric = 1
    """A changing number: a loss, an epoch."""
    parameter = 2
    """A constant text: the name of an optimizer."""


class Report(NamedTuple):
    """A name with its current value."""

    name: str
    value: object
    kind: ReportType


class _Push:
    """The sender of reports; `failures` counts the gateway's consecutive failures."""

    def __init__(self) -> None:
        self.failures = 0

    def __call__(self, name: str, value: object, report_type: ReportType) -> None:
        """Send one report synchronously."""
        self.all([Report(name, value, report_type)])

    def all(self, reports: Iterable[Report]) -> None:
        """Send reports together. Errors are logged once, never raised: training continues."""
        reports = [report for report in reports if _warn_unless_number(report)]
        folder, gateway = os.environ.get("RUNAI_CHECKPOINT_DIR"), os.environ.get(GATEWAY_URL_KEY)
        if not (folder or gateway):
            notice(
                "runai.reporter: nothing is reported, because this is no job of the platform and"
                f" {GATEWAY_URL_KEY} names no push gateway."
            )
        if folder:
            try:
                _merge_into_file(Path(folder) / PROGRESS_FILE, reports)
            except OSError as error:
                notice(f"runai.reporter: cannot write the progress of this job: {error}")
        if gateway and reports and self.failures < RETRIES:
            try:
                _post_to_gateway(gateway, reports)
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                self.failures += 1
                notice(f"runai.reporter: the push gateway did not take a report: {error}")
            else:
                self.failures = 0


push = _Push()


def _warn_unless_number(report: Report) -> bool:
    """Return True if a report can be sent; else log why not."""
    if report.kind is ReportType.metric:
        try:
            float(report.value)  # type: ignore[arg-type] # checked here
        except (TypeError, ValueError):
            notice(
                f"runai.reporter: the metric {report.name!r} is not reported: it must be a"
                f" number, not {type(report.value).__name__}."
            )
            return False
    return True


def _merge_into_file(path: Path, reports: Iterable[Report]) -> None:
    """Merge reports into the file, which survives pauses of the job."""
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        known = {}
    known = {key: dict(known.get(key, {})) for key in ("metrics", "parameters")}
    for name, value, kind in reports:
        if kind is ReportType.metric:
            known["metrics"][name] = float(value)  # type: ignore[arg-type] # sound
        else:
            known["parameters"][name] = str(value)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(known, file)
    Path(temporary).replace(path)


def _post_to_gateway(gateway: str, reports: Iterable[Report]) -> None:
    """Add to the gateway's group of this pod, like prometheus_client's `pushadd_to_gateway`."""
    address = gateway if "://" in gateway else f"http://{gateway}"
    pod = os.environ.get(GROUPING_KEY) or os.environ.get("RUNAI_WORKER") or socket.gethostname()
    group = f"metrics/job/{PUSH_GATEWAY_JOB_NAME}/{_label_path(GROUPING_KEY, pod)}"
    httpx.post(
        f"{address.rstrip('/')}/{group}",
        content="".join(map(_exposition, reports)),
        headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
        timeout=TIMEOUT_S,
    ).raise_for_status()


def _label_path(label: str, value: str) -> str:
    """Return a grouping label for the gateway's path: in base64 if it contains a slash."""
    if "/" not in value and value:
        return f"{label}/{quote(value, safe='')}"
    import base64  # noqa: PLC0415 - rarely needed

    return f"{label}@base64/{base64.urlsafe_b64encode(value.encode()).decode() or '='}"


def _exposition(report: Report) -> str:
    """Return a report in Prometheus' text format, with the original's names and labels."""
    kind = report.kind.name
    name = f"reporter_push_gateway_{kind}_{_NAMELESS.sub('_', report.name)}"
    if report.kind is ReportType.metric:
        labels, value = {"metric_name": report.name}, float(report.value)  # type: ignore[arg-type]
    else:
        labels = {"param_name": report.name, "param_value": str(report.value)}
        value = 1.0
    labels["push_gateway_type"] = kind
    pairs = ",".join(f'{key}="{text.translate(_ESCAPES)}"' for key, text in labels.items())
    number = {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}.get(repr(value), repr(value))
    return f"# TYPE {name} gauge\n{name}{{{pairs}}} {number}\n"
