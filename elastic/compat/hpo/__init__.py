"""Search of hyper-parameters that outlives pauses, under the original names.

Knows the names; `experiments` keeps the shared file.
"""

from runai.hpo.experiments import Status, Strategy, init, pick, report

__all__ = ["Status", "Strategy", "init", "pick", "report"]
