"""Enforcement tiers of device memory shares, and their descriptions for users.

The available tiers depend on driver, rights and settings. The strongest available tier is used and
shown to the user. Pure.
"""

from dataclasses import dataclass
from enum import StrEnum

MPS_IS_TRIED = "it is being tried whether its limit holds"
NO_MPS_HERE = "this device cannot have it"
"""State of MIG instances, which cannot use MPS, on a machine with devices that can."""


class Tier(StrEnum):
    """Enforcement of a memory share, from the weakest to the strongest."""

    FRAMEWORKS = "frameworks"
    """Each framework limits itself, and the watchdog enforces the sum (T1)."""
    MPS = "mps"
    """CUDA refuses each process more than the share (T3)."""
    DRIVER = "driver"
    """The driver refuses the workload's control group more than the share (T4)."""

    @property
    def is_hard(self) -> bool:
        """Return True if every allocation beyond the share fails."""
        return self is Tier.DRIVER

    @property
    def badge(self) -> str:
        """Return the tier's badge text.

        >>> Tier.DRIVER.badge, Tier.FRAMEWORKS.badge
        ('hard limit', 'soft limit')
        """
        return "hard limit" if self.is_hard else "soft limit"

    @property
    def why(self) -> str:
        """Return a one-sentence explanation for users."""
        return _WHY[self]


_WHY = {
    Tier.FRAMEWORKS: (
        "PyTorch, TensorFlow, JAX and CuPy keep to the share; a workload whose processes together"
        " exceed it is warned; its largest process is interrupted, and ended 10 s later."
    ),
    Tier.MPS: (
        "CUDA refuses every process more than the share; a workload whose processes together"
        " exceed it is warned; its largest process is interrupted, and ended 10 s later."
    ),
    Tier.DRIVER: "The driver refuses the workload's processes together more than the share.",
}


@dataclass(frozen=True, slots=True)
class TierState:
    """Availability of a tier; `reason` is half a sentence if it is not available."""

    tier: Tier
    reason: str = ""

    @property
    def available(self) -> bool:
        """Return True if the tier can be used."""
        return not self.reason


def strongest(states: list[TierState]) -> Tier:
    """Return the strongest available tier; `FRAMEWORKS` is always available.

    >>> strongest([TierState(Tier.DRIVER, "driver 580 has no such call"), TierState(Tier.MPS)])
    <Tier.MPS: 'mps'>
    """
    order = list(Tier)
    had = [state.tier for state in states if state.available]
    return max(had, key=order.index, default=Tier.FRAMEWORKS)


COMPUTE_IS_SHARED = (
    "You get the memory shown. Compute is shared equally with active users of the same GPU."
)
"""Shown next to every GPU fraction."""


def gib(mib: int) -> str:
    """Format MiB as GiB, less than one as they are.

    >>> gib(71885), gib(64)
    ('70.2 GiB', '64 MiB')
    """
    return f"{mib} MiB" if mib < 1024 else f"{mib / 1024:.1f} GiB"
