"""The GPUs of a node, and its CPU and memory."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU of a node, as the scheduler and the user see it.

    `index` is the position on its node (the scheduler's device number), `uuid` the value in
    CUDA_VISIBLE_DEVICES, `memory_mib` the memory that workloads may use.
    """

    index: int
    uuid: str
    name: str
    memory_mib: int
    simulated: bool
    fault: str = ""
    """Why nothing new is placed on it, as half a sentence; "" while it is healthy."""

    @property
    def healthy(self) -> bool:
        """Return True if workloads may be placed on it."""
        return not self.fault


@dataclass(frozen=True, slots=True)
class NodeCapacity:
    """CPU and memory of a node that workloads may request together; None: without a bound."""

    cpu_milli: int | None = None
    memory_mib: int | None = None
