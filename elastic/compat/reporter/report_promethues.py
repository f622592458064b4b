"""The original library's module, with its spelling: `push` and its settings.

Only for scripts that import its names.
"""

from runai.reporter.pushing import (
    GATEWAY_URL_KEY,
    GROUPING_KEY,
    PUSH_GATEWAY_JOB_NAME,
    RETRIES,
    ReportType,
    push,
)
from runai.reporter.reporting import Reporter, finish, reportMetric, reportParameter, send

__all__ = [
    "GATEWAY_URL_KEY",
    "GROUPING_KEY",
    "PUSH_GATEWAY_JOB_NAME",
    "RETRIES",
    "ReportType",
    "Reporter",
    "finish",
    "push",
    "reportMetric",
    "reportParameter",
    "send",
]
