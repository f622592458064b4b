"""How strictly a share of device memory is kept, and the words for it.

The tiers are those of the design: what can be had differs by driver, rights and settings; the
strongest one is used, and the user is told which. Pure; shown by the API and the pages.
"""

from dataclasses import dataclass
from enum import StrEnum

MPS_IS_TRIED = "it is being tried whether its limit holds"
NO_MPS_HERE = "this device cannot have it"
"""Of parts of a GPU (MIG), beside devices that can."""


class Tier(StrEnum):
    """What keeps a share; from the weakest to the strongest."""

    FRAMEWORKS = "frameworks"
    """Each framework keeps to it, and the watchdog looks after the sum (T1)."""
    MPS = "mps"
    """CUDA refuses each process more than the share (T3)."""
    DRIVER = "driver"
    """The driver refuses the workload's control group more than the share (T4)."""

    @property
    def is_hard(self) -> bool:
        """Tell whether an allocation beyond it fails whatever the program does."""
        return self is Tier.DRIVER

    @property
    def badge(self) -> str:
        """Return the two words for it.

        >>> Tier.DRIVER.badge, Tier.FRAMEWORKS.badge
        ('hard limit', 'soft limit')
        """
        return "hard limit" if self.is_hard else "soft limit"

    @property
    def why(self) -> str:
        """Say what that means, in one sentence."""
        return _WHY[self]


_WHY = {
    Tier.FRAMEWORKS: (
        "PyTorch, TensorFlow, JAX and CuPy keep to the share; a workload whose processes together"
        " exceed it is told, and its largest process is ended within ten seconds."
    ),
    Tier.MPS: (
        "CUDA refuses every process more than the share; a workload whose processes together"
        " exceed it is told, and its largest process is ended within ten seconds."
    ),
    Tier.DRIVER: "The driver refuses the workload's processes together more than the share.",
}


@dataclass(frozen=True, slots=True)
class TierState:
    """Whether a tier can be had here; `reason` says why not, as half a sentence."""

    tier: Tier
    reason: str = ""

    @property
    def available(self) -> bool:
        """Tell whether it can be used."""
        return not self.reason


def strongest(states: list[TierState]) -> Tier:
    """Return the strongest tier that can be had; frameworks always can.

    >>> strongest([TierState(Tier.DRIVER, "driver 580 has no such call"), TierState(Tier.MPS)])
    <Tier.MPS: 'mps'>
    """
    order = list(Tier)
    had = [state.tier for state in states if state.available]
    return max(had, key=order.index, default=Tier.FRAMEWORKS)


COMPUTE_IS_SHARED = "Memory is limited, compute is shared equally among active sessions."
"""Stands beside every fraction."""


def gib(mib: int) -> str:
    """Write an amount of memory.

    >>> gib(71885)
    '70.2 GiB'
    """
    return f"{mib / 1024:.1f} GiB"
