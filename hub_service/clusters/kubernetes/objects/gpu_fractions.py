"""GPU shares: the annotations that request one and name its devices.

A pod asks by annotations, as in Run:AI and KAI, and not by `nvidia.com/gpu`, which the kubelet
would count. It sees its devices by an environment variable that reads an annotation of the pod
itself. The binding writes that annotation, so that node and devices are set in one request. An
elastic job of one process asks for whole devices in this form (fraction 1), since its next pod may
get another number of them. Pure.
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
)
from runai.hub_service.wire import amounts

FRACTION, MEMORY, DEVICES = "gpu-fraction", "gpu-memory", "gpu-fraction-num-devices"
MOST = "runai/max-gpus"
"""Annotation: maximum of whole devices with which the pod may restart."""
VARIABLE = "NVIDIA_VISIBLE_DEVICES"
VISIBLE = "runai/visible-devices"
"""Annotation of a bound pod: the UUIDs of its devices, in the container runtime's format."""
GRANTED = "runai/devices"
"""Annotation of a bound pod: the milli-GPU of each device, as JSON."""
RESERVATION = "runai/reservation"
"""Annotation of a bound pod: the reservation pods of its devices, in the same order."""
RESUMED = "runai/resumed"
"""Annotation of a bound pod: "1" if its job may find a checkpoint.

It is set if the job was started before.
"""
OF_MEMORY = (
    "RUNAI_GPU_MEMORY_LIMIT_MIB",
    "RUNAI_GPU_MEMORY_LIMITS_MIB",
    "RUNAI_GPU_DEVICES_MIB",
    "RUNAI_GPU_CONTEXT_MIB",
)
"""Variables with a program's memory limits; the binding writes them to annotations."""
SHARING = {"TF_FORCE_GPU_ALLOW_GROWTH": "true", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
"""Without these, frameworks allocate a GPU's whole memory, including the other pods' shares."""
MOST_DEVICES, MOST_DIGITS = 64, 10
_FIELD = f"metadata.annotations['{VISIBLE}']"


@dataclass(frozen=True, slots=True)
class DeviceRequest:
    """A pod's request per device: a fraction or memory; one of the two is 0."""

    milli: int = 0
    mib: int = 0
    devices: int = 1
    most: int = 0
    """Maximum of whole devices, with a minimum of one; 0: not elastic."""

    @property
    def annotations(self) -> dict[str, str]:
        """Return the annotations that express the request."""
        notes = {FRACTION: gpu_text(self.milli)} if self.milli else {MEMORY: str(self.mib)}
        notes |= {MOST: str(self.most)} if self.most else {}
        return notes | ({DEVICES: str(self.devices)} if self.devices > 1 else {})

    def milli_of(self, device_mib: int) -> MilliGpu:
        """Return the pod's total request in milli-GPU, on devices of `device_mib` MiB.

        A request of memory is converted, rounded up (P3); 0 if the device's size is unknown (0).
        """
        each = self.milli or (fraction_of_memory(self.mib, device_mib) if device_mib else 0)
        return MilliGpu(each * self.devices)

    @property
    def gpus(self) -> MilliGpu:
        """Return the fraction of each device, or the sum of whole ones, for the core."""
        return MilliGpu(self.milli * (self.devices if self.most else 1))

    @property
    def distinct(self) -> int:
        """Return the number of devices with a fraction each, as the core expects it."""
        return 1 if self.most else self.devices

    @property
    def memory_mib(self) -> Mib | None:
        """Return the memory of each device in MiB, as the core expects it."""
        return Mib(self.mib) if self.mib else None


@dataclass(frozen=True, slots=True)
class BoundDevices:
    """The device shares that a pod was bound to."""

    reservations: tuple[str, ...]
    devices: tuple[str, ...]
    """UUIDs, in the order of the reservations."""
    milli: tuple[int, ...]

    @property
    def annotations(self) -> dict[str, str]:
        """Return the annotations of the binding."""
        return {
            VISIBLE: ",".join(self.devices),
            GRANTED: json.dumps(dict(zip(self.devices, self.milli, strict=True))),
            RESERVATION: ",".join(self.reservations),
        }


def read_part(annotations: Mapping[str, str], gpus: int) -> tuple[DeviceRequest | None, str]:
    """Return the requested share, or None, and the error in the annotations, or "".

    >>> read_part({"gpu-fraction": "0.5"}, 0)
    (DeviceRequest(milli=500, mib=0, devices=1, most=0), '')
    """
    fraction, memory = annotations.get(FRACTION), annotations.get(MEMORY)
    wrong = ""
    if fraction is None and memory is None:
        if option := next((name for name in (DEVICES, MOST) if name in annotations), ""):
            wrong = f"{option} is said without {FRACTION} or {MEMORY}"
        return None, wrong
    if fraction is not None and memory is not None:
        wrong = f"{FRACTION} and {MEMORY} are both given: keep one of them"
    elif gpus:
        wrong = f"a part of a GPU and {gpus} whole are asked for: remove the one or the other"
    devices = _number(annotations.get(DEVICES, "1"), most=MOST_DEVICES)
    if not devices:
        wrong = wrong or f"{DEVICES} must be a number of devices, such as 2"
    milli, mib = _milli(fraction or ""), _mib(memory or "")
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
        wrong = wrong or f"{MEMORY} must be device memory, such as 8000 (MiB) or 8G"
    return (None, wrong) if wrong else (DeviceRequest(milli, mib, devices, most), "")


def _number(text: str, *, most: int) -> int:
    """Parse a number from 1 to `most`; 0 if it is none."""
    number = int(text) if text.isascii() and text.isdecimal() and len(text) <= MOST_DIGITS else 0
    return number if number <= most else 0


def _milli(text: str) -> int:
    """Parse a fraction of one GPU in milli-GPU; 0 if it is none."""
    try:
        milli = int(amounts.gpus(text) * 1000)
    except ValueError:
        return 0
    return milli if milli <= WHOLE_GPU else 0


def _mib(text: str) -> int:
    """Parse device memory, a bare number in MiB; 0 if it is none."""
    try:
        return amounts.size_mib(f"{text}M" if text.isdecimal() else text)
    except ValueError:
        return 0


def memory_annotations(
    device_request: DeviceRequest, milli: Iterable[int], device_mib: int
) -> dict[str, str]:
    """Return the binding's annotations about memory in MiB per device; {} if a limit is unknown.

    Programs stay within it by `runai_limits`, which image or environment provide.
    """
    limits = [device_request.mib or memory_of_fraction(share, device_mib) for share in milli]
    if not all(limits):
        return {}
    known = [device_mib] * len(limits) if device_mib else []
    values = (str(min(limits)), _list(limits), _list(known), str(CONTEXT_MIB))
    return dict(zip(map(_note_of, OF_MEMORY), values, strict=True))


def memory_variables() -> list[dict[str, Any]]:
    """Return the variables that show a container its limits of device memory."""
    return [annotation_variable(name, _note_of(name)) for name in OF_MEMORY]


def _note_of(variable: str) -> str:
    """Return the annotation of a variable.

    >>> _note_of("RUNAI_GPU_CONTEXT_MIB")
    'runai/gpu-context-mib'
    """
    return "runai/" + variable.removeprefix("RUNAI_").lower().replace("_", "-")


def _list(numbers: Iterable[int]) -> str:
    return ",".join(map(str, numbers))


def read_grant(annotations: Mapping[str, str]) -> BoundDevices | None:
    """Parse the annotations of a binding; None if they are missing or invalid."""
    names = tuple(filter(None, annotations.get(RESERVATION, "").split(",")))
    try:
        shares = {str(device): int(m) for device, m in json.loads(annotations[GRANTED]).items()}
    except (AttributeError, KeyError, OverflowError, RecursionError, TypeError, ValueError):
        return None
    if not names or len(set(names)) != len(names) or len(names) != len(shares):
        return None
    return BoundDevices(names, tuple(shares), tuple(shares.values()))


def device_variable() -> dict[str, object]:
    """Return the variable that shows a container its pod's devices."""
    return annotation_variable(VARIABLE, VISIBLE)


def annotation_variable(variable: str, annotation: str) -> dict[str, Any]:
    """Return a variable that shows a container an annotation of its pod."""
    path = f"metadata.annotations['{annotation}']"
    return {"name": variable, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def blindness(spec: Object) -> str:
    """Return which container would see none of its share, or more than it; or ""."""
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
