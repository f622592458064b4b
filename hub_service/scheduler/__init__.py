"""The pure core: who gets which devices, decided by one function.

`decide(snapshot) -> Plan` is deterministic and total, and uses the standard library only: no
clock, no I/O, no randomness, no floating point. Everything else of the platform is a shell
around it. The rules have letters (S, O, Q, R, P, E, X), cited where they are implemented.
"""

from runai.hub_service.scheduler.cycle import decide, explain, forecast
from runai.hub_service.scheduler.model.explanation import (
    AllowMoves,
    AskOtherwise,
    Change,
    Counterfactual,
    EndWorkloads,
    ExpectedStart,
    Explanation,
    Holder,
    SetProject,
)
from runai.hub_service.scheduler.model.quantity import (
    Mib,
    MilliGpu,
    gpu_number,
    gpu_text,
    milli_gpus,
)
from runai.hub_service.scheduler.model.snapshot import (
    Decision,
    DeviceShare,
    LeftOut,
    Move,
    Node,
    NodeTypes,
    Plan,
    Policy,
    Project,
    ProjectShare,
    Reason,
    Reserve,
    Resize,
    Snapshot,
    Start,
    Stop,
    Unreserve,
    Wait,
    Worker,
    WorkerState,
    Workload,
)
from runai.hub_service.scheduler.model.what_if import changed, serves
from runai.hub_service.scheduler.placement.quota_check import oversubscribed
from runai.hub_service.scheduler.state.cluster_index import Changes, Index

__all__ = [
    "AllowMoves",
    "AskOtherwise",
    "Change",
    "Changes",
    "Counterfactual",
    "Decision",
    "DeviceShare",
    "EndWorkloads",
    "ExpectedStart",
    "Explanation",
    "Holder",
    "Index",
    "LeftOut",
    "Mib",
    "MilliGpu",
    "Move",
    "Node",
    "NodeTypes",
    "Plan",
    "Policy",
    "Project",
    "ProjectShare",
    "Reason",
    "Reserve",
    "Resize",
    "SetProject",
    "Snapshot",
    "Start",
    "Stop",
    "Unreserve",
    "Wait",
    "Worker",
    "WorkerState",
    "Workload",
    "changed",
    "decide",
    "explain",
    "forecast",
    "gpu_number",
    "gpu_text",
    "milli_gpus",
    "oversubscribed",
    "serves",
]
