"""The original library's module of this name, as it spelled it: `push` and its settings.

Knows nothing of its own. Here so that scripts which reach into it go on working.
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
