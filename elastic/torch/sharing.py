"""Broadcast of one rank's state to all ranks of a new group.

Tensors and numbers travel through collectives; a received state runs no code (`weights_only`).
"""

from __future__ import annotations

import io
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from runai.elastic.torch.checkpoint import map_tensors

_SMALL_BYTES = 1 << 20
"""Smaller tensors share a message: one costs as much as copying these bytes twice."""


def share_state(state: object, source: int) -> Any:  # noqa: ANN401 - of the source's shape
    """Return the source's state on every rank; other ranks' argument is ignored.

    The source gets its own state back, other ranks new tensors on the same kind of device.

    Raises:
        RuntimeError: if a rank is gone.
    """
    is_source = dist.get_rank() == source
    outline = _outline(state) if is_source else None
    shape, devices = _share_outline(outline, source)
    tensors: list[Tensor] = []
    if is_source:
        map_tensors(tensors.append, state)
    else:
        kinds = iter(devices)
        map_tensors(
            lambda meta: tensors.append(torch.empty_like(meta, device=_device(next(kinds)))), shape
        )
    _share_tensors([tensor.detach() for tensor in tensors], source)
    if is_source:
        return state
    filled = iter(tensors)
    return map_tensors(lambda _: next(filled), shape)


def _outline(state: object) -> bytes:
    """Return a state with empty tensors, and the tensors' devices, as bytes."""
    devices: list[str] = []

    def without_content(tensor: Tensor) -> Tensor:
        devices.append(tensor.device.type)
        return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")

    file = io.BytesIO()
    torch.save((map_tensors(without_content, state), devices), file)
    return file.getvalue()


def _share_outline(outline: bytes | None, source: int) -> tuple[Any, list[str]]:
    """Broadcast the source's outline; return the empty state and the devices."""
    size = torch.tensor([len(outline or b"")])
    dist.broadcast(size, source)
    if outline is None:
        content = torch.empty(int(size.item()), dtype=torch.uint8)
    else:
        content = torch.frombuffer(bytearray(outline), dtype=torch.uint8)
    dist.broadcast(content, source)
    shape, devices = torch.load(io.BytesIO(content.numpy().tobytes()), weights_only=True)
    return shape, devices


def _share_tensors(tensors: list[Tensor], source: int) -> None:
    """Broadcast the source's tensors in place, small ones together."""
    small_tensors: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for tensor in tensors:
        if tensor.numel() * tensor.element_size() >= _SMALL_BYTES:
            # Only the source may be non-contiguous; then it sends a copy.
            dist.broadcast(tensor.contiguous(), source)
        elif tensor.numel():
            small_tensors.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    for group in small_tensors.values():
        flat = torch.cat([tensor.reshape(-1) for tensor in group])
        dist.broadcast(flat, source)
        start = 0
        for tensor in group:
            tensor.copy_(flat[start : start + tensor.numel()].view_as(tensor))
            start += tensor.numel()


def _device(kind: str) -> torch.device:
    return torch.device(kind, torch.cuda.current_device()) if kind == "cuda" else torch.device(kind)
