"""Report metrics and progress of a training to the platform, under the original names.

Knows the names; `reporting` collects in the background, `pushing` knows where reports go.
"""

from runai.reporter.pushing import ReportType
from runai.reporter.reporting import Reporter, finish, reportMetric, reportParameter

__all__ = ["ReportType", "Reporter", "finish", "reportMetric", "reportParameter"]
