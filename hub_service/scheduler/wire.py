"""The JSON of the core in one place: snapshots in, plans out, and the error for wrong ones.

Knows where each half lives (`snapshot_wire`, `plan_wire`), nothing else. Called by `__main__`, the
API and tests.
"""

from runai.hub_service.scheduler.fields import InvalidSnapshot
from runai.hub_service.scheduler.plan_wire import decision_to_json, plan_from_json, plan_to_json
from runai.hub_service.scheduler.snapshot_wire import (
    policy_from_json,
    snapshot_from_json,
    snapshot_to_json,
)

__all__ = [
    "InvalidSnapshot",
    "decision_to_json",
    "plan_from_json",
    "plan_to_json",
    "policy_from_json",
    "snapshot_from_json",
    "snapshot_to_json",
]
