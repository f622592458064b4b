"""Reports of a training's metrics and progress to the platform, under the original names.

`reporting` queues reports in the background, `pushing` sends them.
"""

from runai.reporter.pushing import ReportType
from runai.reporter.reporting import Reporter, finish, reportMetric, reportParameter

__all__ = ["ReportType", "Reporter", "finish", "reportMetric", "reportParameter"]
