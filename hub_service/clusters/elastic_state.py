"""What a cluster remembers of an elastic job: its target, what its workers told, its speed by size.

Plain frozen data; part of a workload's record. What follows from it is `membership`'s.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from runai.hub_service.elastic_messages import Target, WorkerPhase


@dataclass(frozen=True, slots=True)
class ElasticRules:
    """How eagerly a cluster grows elastic jobs; shrinking never waits."""

    grow_every_s: float = 30.0
    """A job that has just started, grown or shrunk is left alone so long."""
    resize_cost_s: int = 30
    """What it costs a job of one process to be started again on other GPUs (Pollux: 30 s)."""
    pays_from: float | None = 0.1
    """A GPU that adds less than this part of what each of the others gives is not worth having.
    None: every one is."""


@dataclass(frozen=True, slots=True)
class ElasticState:
    """An elastic job's own part of its record."""

    target: Target | None = None
    """What its workers are told; its `gen` grows over the job's whole life."""
    phases: Mapping[str, WorkerPhase] = field(default_factory=dict)
    """What each worker told since its start; empty: nobody speaks the protocol."""
    losses: Mapping[str, int] = field(default_factory=dict)
    """How often each worker ended unexpectedly while the others went on."""
    throughput: Mapping[int, float] = field(default_factory=dict)
    """Samples per second of the whole job, by how many GPUs it was measured with."""
    global_batch: int = 0
    """Samples of an update over all ranks; 0: nobody told."""
    steps: int = 0
    """Micro-batches of an update on each rank, as it is now."""
    sized: float | None = None
    """When the scheduler last changed its size."""
    resizes: int = 0
    """How often it went on with more or fewer GPUs."""
    finishers: tuple[str, ...] = ()
    """Who had trained when the first of its ranks finished: their ends say how the job did."""
