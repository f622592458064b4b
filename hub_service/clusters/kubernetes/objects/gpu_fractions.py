"""Parts of GPUs: how a pod asks for one, and how it is told which device has become its own.

A pod asks by annotations, as in Run:AI and KAI, and then by no `nvidia.com/gpu`: the kubelet would
count that. It sees its devices by an environment variable that reads an annotation of the pod
itself, which the binding writes: node and devices become known in one request. An elastic job of
one process asks for whole devices in this way (a fraction of 1), since its next pod may get another
number of them. Pure; `objects` reads pods with it, `plans` and `acting` write grants.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from runai.hub_service.clusters.kubernetes.client.api import Object
from runai.hub_service.clusters.workloads.worker_environment import CONTEXT_MIB
from runai.hub_service.scheduler.model.quantity import (
    WHOLE_GPU,
    Mib,
    MilliGpu,
    fraction_of_memory,
    gpu_text,
    memory_of_fraction,
    milli_gpus,
)

FRACTION, MEMORY, DEVICES = "gpu-fraction", "gpu-memory", "gpu-fraction-num-devices"
MOST = "runai/max-gpus"
"""Annotation of a pod that may be started again on more or fewer whole devices than it asks for."""
VARIABLE = "NVIDIA_VISIBLE_DEVICES"
VISIBLE = "runai/visible-devices"
"""Annotation of a bound pod: the UUIDs of its devices, as the container runtime wants them."""
GRANTED = "runai/devices"
"""The same with the milli-GPU of each, as JSON."""
RESERVATION = "runai/reservation"
"""The reservation pods that keep those devices from everybody else, in the same order."""
RESUMED = "runai/resumed"
"""Annotation of a bound pod: "1" where its job was started before, and may find a checkpoint."""
OF_MEMORY = (
    "RUNAI_GPU_MEMORY_LIMIT_MIB",
    "RUNAI_GPU_MEMORY_LIMITS_MIB",
    "RUNAI_GPU_DEVICES_MIB",
    "RUNAI_GPU_CONTEXT_MIB",
)
"""Variables that tell a program of its memory; the binding says them in annotations like them."""
SHARING = {"TF_FORCE_GPU_ALLOW_GROWTH": "true", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
"""Frameworks take all the memory of a GPU otherwise, their neighbour's share included."""
MOST_DEVICES, MOST_MIB, MOST_DIGITS = 64, 1 << 30, 10
_FIELD = f"metadata.annotations['{VISIBLE}']"


@dataclass(frozen=True, slots=True)
class Part:
    """What a pod asks of each of some devices: a fraction of it, or memory. One of them is 0."""

    milli: int = 0
    mib: int = 0
    devices: int = 1
    most: int = 0
    """How many whole devices it may have at most, of one to so many; 0: it is not elastic."""

    @property
    def annotations(self) -> dict[str, str]:
        """Return how a pod says so."""
        asks = {FRACTION: gpu_text(self.milli)} if self.milli else {MEMORY: str(self.mib)}
        asks |= {MOST: str(self.most)} if self.most else {}
        return asks | ({DEVICES: str(self.devices)} if self.devices > 1 else {})

    def milli_of(self, device_mib: int) -> MilliGpu:
        """Return what it counts for on devices of that size, together (P3)."""
        each = self.milli or (fraction_of_memory(self.mib, device_mib) if device_mib else 0)
        return MilliGpu(each * self.devices)

    @property
    def gpus(self) -> MilliGpu:
        """Return the fraction of each device, or all of its whole ones, as the core takes it."""
        return MilliGpu(self.milli * (self.devices if self.most else 1))

    @property
    def distinct(self) -> int:
        """Return on how many devices it wants a fraction, as the core takes it."""
        return 1 if self.most else self.devices

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
    (Part(milli=500, mib=0, devices=1, most=0), '')
    """
    fraction, memory = annotations.get(FRACTION), annotations.get(MEMORY)
    wrong = ""
    if fraction is None and memory is None:
        if said := next((name for name in (DEVICES, MOST) if name in annotations), ""):
            wrong = f"{said} is said without {FRACTION} or {MEMORY}"
        return None, wrong
    if fraction is not None and memory is not None:
        wrong = f"{FRACTION} and {MEMORY} are both given: keep one of them"
    elif gpus:
        wrong = f"a part of a GPU and {gpus} whole are asked for: remove the one or the other"
    devices = _number(annotations.get(DEVICES, "1"), most=MOST_DEVICES)
    if not devices:
        wrong = wrong or f"{DEVICES} must be a number of devices, such as 2"
    milli, mib = _milli(fraction or ""), _number(memory or "", most=MOST_MIB)
    most = _number(annotations.get(MOST, ""), most=MOST_DEVICES)
    if MOST in annotations:
        if not most:
            wrong = wrong or f"{MOST} must be a number of devices, such as 4"
        if milli != WHOLE_GPU:
            wrong = wrong or f"{MOST} is for whole devices: say {FRACTION} 1 with it"
        most = max(most, devices)
    elif milli == WHOLE_GPU:
        milli = 0
    if fraction is not None and not milli:
        wrong = wrong or f"{FRACTION} must be a part of one GPU, such as 0.5, in thousandths"
    if memory is not None and not mib:
        wrong = wrong or f"{MEMORY} must be MiB of device memory, such as 8000"
    return (None, wrong) if wrong else (Part(milli, mib, devices, most), "")


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
    return milli if milli <= WHOLE_GPU else 0


def told_of_memory(part: Part, milli: Iterable[int], device_mib: int) -> dict[str, str]:
    """Return what a binding says of memory: MiB of each device, which is 0 where nobody knows it.

    Programs keep within it by `runai_limits`, which image and environment bring along.
    """
    limits = [part.mib or memory_of_fraction(share, device_mib) for share in milli]
    if not all(limits):
        return {}
    known = [device_mib] * len(limits) if device_mib else []
    values = (str(min(limits)), _list(limits), _list(known), str(CONTEXT_MIB))
    return dict(zip(map(_note_of, OF_MEMORY), values, strict=True))


def sees_its_memory() -> list[dict[str, Any]]:
    """Return the variables that show a container what it may use of its devices' memory."""
    return [shown(name, _note_of(name)) for name in OF_MEMORY]


def _note_of(variable: str) -> str:
    """Name the annotation of a variable.

    >>> _note_of("RUNAI_GPU_CONTEXT_MIB")
    'runai/gpu-context-mib'
    """
    return "runai/" + variable.removeprefix("RUNAI_").lower().replace("_", "-")


def _list(numbers: Iterable[int]) -> str:
    return ",".join(map(str, numbers))


def read_grant(annotations: Mapping[str, str]) -> Grant | None:
    """Return what a binding wrote; None: nothing that can be understood."""
    names = tuple(filter(None, annotations.get(RESERVATION, "").split(",")))
    try:
        shares = {str(device): int(m) for device, m in json.loads(annotations[GRANTED]).items()}
    except (AttributeError, KeyError, OverflowError, RecursionError, TypeError, ValueError):
        return None
    if not names or len(set(names)) != len(names) or len(names) != len(shares):
        return None
    return Grant(names, tuple(shares), tuple(shares.values()))


def sees_its_share() -> dict[str, object]:
    """Return the variable that shows a container the devices that its pod was bound to."""
    return shown(VARIABLE, VISIBLE)


def shown(variable: str, annotation: str) -> dict[str, Any]:
    """Return a variable that shows a container what the binding wrote on its pod."""
    path = f"metadata.annotations['{annotation}']"
    return {"name": variable, "valueFrom": {"fieldRef": {"fieldPath": path}}}


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
