"""One run of `decide`: the rules in the order in which they act.

Knows the order of the steps and what a plan consists of. Leaves every rule to its file. Called by
the controller, the simulator, `runai schedule` and the tests.
"""

from __future__ import annotations

from runai.hub_service.scheduler.model import Plan, Policy, Snapshot


def decide(snapshot: Snapshot, policy: Policy | None = None) -> Plan:
    """Decide who starts, stops and waits, from the snapshot alone."""
    raise NotImplementedError
