"""Name the GPUs of this node: real ones through NVML, or simulated ones, behind one protocol."""

from dataclasses import dataclass

__all__ = ["Device"]


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU of a node as the scheduler and the user see it.

    `index` is the position on its node (the core's device number), `uuid` what a process is
    given in CUDA_VISIBLE_DEVICES, `memory_mib` the memory that workloads may use.
    """

    index: int
    uuid: str
    name: str
    memory_mib: int
    simulated: bool
    healthy: bool = True
