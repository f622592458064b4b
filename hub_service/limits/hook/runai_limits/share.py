"""Device memory share of this process, parsed from its environment.

The variables' names match `clusters.environment`, which sets them. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

MIB = 1 << 20


class Share(NamedTuple):
    """Limits by device, in the order of CUDA_VISIBLE_DEVICES; None: the whole device."""

    limits_mib: tuple[int | None, ...]
    devices_mib: tuple[int, ...]
    """Memory of each device available to workloads, in MiB; empty if not set."""
    context_mib: int

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Share | None:
        """Parse the environment; None without a workload that has a device.

        Raises:
            ValueError: a variable is not a number.
        """
        limits = _numbers(environ.get("RUNAI_GPU_MEMORY_LIMITS_MIB", ""))
        if not limits:
            return None
        devices = _numbers(environ.get("RUNAI_GPU_DEVICES_MIB", ""))
        return cls(
            tuple(
                None if index < len(devices) and limit >= devices[index] else limit
                for index, limit in enumerate(limits)
            ),
            devices,
            int(environ.get("RUNAI_GPU_CONTEXT_MIB") or 0),
        )

    def usable_mib(self, index: int) -> int | None:
        """Return the MiB that a framework may allocate on a device; None: unlimited.

        The limit minus the CUDA context, but at least half of the limit: a share may be smaller
        than a context.
        """
        limit = self.limits_mib[index] if index < len(self.limits_mib) else None
        return None if limit is None else max(limit - self.context_mib, limit // 2)

    def fraction(self, index: int, total_bytes: int) -> float | None:
        """Return the usable memory as a fraction of `total_bytes`; None: unlimited.

        `total_bytes` is the size that the device reports, possibly reduced already.
        """
        usable = self.usable_mib(index)
        if usable is None or total_bytes <= 0 or usable * MIB >= total_bytes:
            return None
        return usable * MIB / total_bytes


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",")) if text else ()
