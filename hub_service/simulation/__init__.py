"""`runai simulate`: a trace replayed in virtual time through the scheduler's own `decide`.

A room beside the pure core, which it drives and which does not know it: traces, results and
pictures have no place among decisions. Reads no clock; a duration is known to the engine alone.
"""

from runai.hub_service.simulation.engine import Run, simulate
from runai.hub_service.simulation.policies import POLICIES, PolicyName
from runai.hub_service.simulation.results import RESULT_KEYS, Results
from runai.hub_service.simulation.traces import TraceRow, read_trace

__all__ = [
    "POLICIES",
    "RESULT_KEYS",
    "PolicyName",
    "Results",
    "Run",
    "TraceRow",
    "read_trace",
    "simulate",
]
