"""Parts of GPUs: how a pod asks for one, and how it is told which device has become its own.

A pod asks by annotations, as in Run:AI and KAI, and then by no `nvidia.com/gpu`: the kubelet would
count that. It sees its devices by an environment variable that reads an annotation of the pod
itself, which the binding writes: node and devices become known in one request. Pure; `objects`
reads pods with it, `plans` and `acting` write grants.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from runai.hub_service.clusters.kubernetes.api import Object
from runai.hub_service.scheduler.quantity import (
    WHOLE_GPU,
    Mib,
    MilliGpu,
    fraction_of_memory,
    gpu_text,
    milli_gpus,
)

__all__ = ["VISIBLE", "Grant", "Part", "blindness", "read_grant", "read_part", "sees_its_share"]

FRACTION, MEMORY, DEVICES = "gpu-fraction", "gpu-memory", "gpu-fraction-num-devices"
VARIABLE = "NVIDIA_VISIBLE_DEVICES"
VISIBLE = "runai/visible-devices"
"""Annotation of a bound pod: the UUIDs of its devices, as the container runtime wants them."""
GRANTED = "runai/devices"
"""The same with the milli-GPU of each, as JSON."""
RESERVATION = "runai/reservation"
"""The reservation pods that keep those devices from everybody else, in the same order."""
MOST_DEVICES, MOST_MIB, MOST_DIGITS = 64, 1 << 30, 10
_FIELD = f"metadata.annotations['{VISIBLE}']"


@dataclass(frozen=True, slots=True)
class Part:
    """What a pod asks of each of some devices: a fraction of it, or memory. One of them is 0."""

    milli: int = 0
    mib: int = 0
    devices: int = 1

    @property
    def annotations(self) -> dict[str, str]:
        """Return how a pod says so."""
        asks = {FRACTION: gpu_text(self.milli)} if self.milli else {MEMORY: str(self.mib)}
        return asks | ({DEVICES: str(self.devices)} if self.devices > 1 else {})

    def milli_of(self, device_mib: int) -> MilliGpu:
        """Return what it counts for on devices of that size, together (P3)."""
        each = self.milli or (fraction_of_memory(self.mib, device_mib) if device_mib else 0)
        return MilliGpu(each * self.devices)

    @property
    def gpus(self) -> MilliGpu:
        """Return the fraction of each device, as the core takes it."""
        return MilliGpu(self.milli)

    @property
    def memory_mib(self) -> Mib | None:
        """Return the memory of each device, as the core takes it."""
        return Mib(self.mib) if self.mib else None


@dataclass(frozen=True, slots=True)
class Grant:
    """Which parts of which devices a pod was bound to."""

    reservations: tuple[str, ...]
    devices: tuple[str, ...]
    """UUIDs, in the order of the reservations."""
    milli: tuple[int, ...]

    @property
    def annotations(self) -> dict[str, str]:
        """Return what the binding writes."""
        return {
            VISIBLE: ",".join(self.devices),
            GRANTED: json.dumps(dict(zip(self.devices, self.milli, strict=True))),
            RESERVATION: ",".join(self.reservations),
        }


def read_part(annotations: Mapping[str, str], gpus: int) -> tuple[Part | None, str]:
    """Return what annotations ask for, if anything, and what is wrong with it, if anything.

    >>> read_part({"gpu-fraction": "0.5"}, 0)
    (Part(milli=500, mib=0, devices=1), '')
    """
    fraction, memory = annotations.get(FRACTION), annotations.get(MEMORY)
    wrong = ""
    if fraction is None and memory is None:
        if DEVICES in annotations:
            wrong = f"{DEVICES} is said without {FRACTION} or {MEMORY}"
        return None, wrong
    if fraction is not None and memory is not None:
        wrong = f"{FRACTION} and {MEMORY} are both given: keep one of them"
    elif gpus:
        wrong = f"a part of a GPU and {gpus} whole are asked for: remove the one or the other"
    devices = _number(annotations.get(DEVICES, "1"), most=MOST_DEVICES)
    if not devices:
        wrong = wrong or f"{DEVICES} must be a number of devices, such as 2"
    milli, mib = _milli(fraction or ""), _number(memory or "", most=MOST_MIB)
    if fraction is not None and not milli:
        wrong = wrong or f"{FRACTION} must be a part of one GPU, such as 0.5, in thousandths"
    if memory is not None and not mib:
        wrong = wrong or f"{MEMORY} must be MiB of device memory, such as 8000"
    return (None, wrong) if wrong else (Part(milli, mib, devices), "")


def _number(text: str, *, most: int) -> int:
    """Read a number from 1 to `most`; 0 is anything else."""
    number = int(text) if text.isascii() and text.isdecimal() and len(text) <= MOST_DIGITS else 0
    return number if number <= most else 0


def _milli(text: str) -> int:
    """Read a part of one GPU, in milli-GPU; 0 is anything else."""
    try:
        milli = milli_gpus(float(text))
    except ValueError:
        return 0
    return milli if milli < WHOLE_GPU else 0


def read_grant(annotations: Mapping[str, str]) -> Grant | None:
    """Return what a binding wrote; None: nothing that can be understood."""
    names = tuple(filter(None, annotations.get(RESERVATION, "").split(",")))
    try:
        shares = {str(device): int(m) for device, m in json.loads(annotations[GRANTED]).items()}
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
    if not names or len(set(names)) != len(names) or len(names) != len(shares):
        return None
    return Grant(names, tuple(shares), tuple(shares.values()))


def sees_its_share() -> dict[str, object]:
    """Return the variable that shows a container the devices that its pod was bound to."""
    return {"name": VARIABLE, "valueFrom": {"fieldRef": {"fieldPath": _FIELD}}}


def blindness(spec: Object) -> str:
    """Say which container would not see its share, or would see more than that; or nothing."""
    for container in _containers(spec):
        found: Object = next((e for e in container.get("env", ()) if e["name"] == VARIABLE), {})
        by_field = found.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
        if by_field != _FIELD and found.get("value") != "void":
            return (
                f"container {container['name']} would not see its share: set its variable"
                f" {VARIABLE} from the field {_FIELD} (fieldRef)"
            )
    return ""


def _containers(spec: Object) -> Iterable[Object]:
    return (*spec["containers"], *spec.get("initContainers", ()))
