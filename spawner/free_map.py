"""The map of free GPUs on the spawn form.

Pure: converts nodes of the overview to the template's data.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from runai.hub_service.wire.device_schemas import DeviceView, NodeView

MAX_DEVICES: Final = 64
"""Above it the map has only the sentence."""


@dataclass(frozen=True, slots=True)
class FreeNode:
    """A node's devices: the allocated part of each, 0 to 1; None: unhealthy."""

    name: str
    taken: tuple[float | None, ...]
    words: str


@dataclass(frozen=True, slots=True)
class FreeMap:
    """Free GPUs, as a sentence and node by node."""

    words: str = ""
    nodes: Sequence[FreeNode] = ()


def free_map(nodes: Sequence[NodeView]) -> FreeMap:
    """Build the map of free GPUs; empty without devices."""
    devices = [device for node in nodes for device in node.devices]
    if not devices:
        return FreeMap()
    whole = sum(_free(device) == 1 for device in devices)
    words = f"{_number(sum(map(_free, devices)))} of {len(devices)} GPUs free"
    words += f" ({whole} whole)" if 0 < whole < len(devices) else ""
    free_nodes = [] if len(devices) > MAX_DEVICES else [_node(n) for n in nodes if n.devices]
    return FreeMap(words, free_nodes)


def _node(node: NodeView) -> FreeNode:
    device_words = [f"GPU {device.device}: {_state(device)}" for device in node.devices]
    return FreeNode(
        node.name,
        tuple(1 - _free(device) if device.healthy else None for device in node.devices),
        f"{node.name}, {'; '.join(device_words)}",
    )


def _state(device: DeviceView) -> str:
    return f"{_number(_free(device))} free" if device.healthy else "taken out"


def _free(device: DeviceView) -> float:
    """Return the free part of a device, 0 to 1; 0 if it is unhealthy."""
    return max(0.0, 1 - device.allocated) if device.healthy else 0.0


def _number(amount: float) -> str:
    return f"{round(amount, 2):g}"
