"""Replay of job traces in virtual time through the scheduler's own `decide`.

It is separate from the scheduler, which stays free of traces, results and pictures. It reads no
clock; only the engine has the jobs' durations.
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
