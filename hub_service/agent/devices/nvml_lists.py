"""Read the driver's lists as they lie in memory: hundreds of lines a second, perhaps.

The binding's own functions make an object of each line, field by field, which was most of what a
poll cost. Knows the layouts (as the binding declares them) and the two ways in which the driver
tells a length. Called by `nvml_processes`, which knows what the lines mean.
"""

import ctypes
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pynvml

_PROCESS = struct.Struct("@IQII")
"""nvmlProcessInfo_t, the same in its second and third version: number, bytes, two instance ids."""

_SAMPLE = struct.Struct("@IQ4I")
"""nvmlProcessUtilizationSample_t: number, µs, and percent of SMs, memory, encoder and decoder."""

_ROOM = 64
"""For so many processes one call is enough."""

NOT_AVAILABLE = 0xFFFF_FFFF_FFFF_FFFF
"""Bytes of a process of which the driver does not tell them."""


def processes(listing: str, handle: Any) -> Iterator[tuple[int, ...]]:  # noqa: ANN401  an opaque pointer
    """Return number, bytes (`NOT_AVAILABLE`), GPU and compute instance of each process.

    Raises:
        NVMLError: the device does not answer, or has no such list.
    """
    function = _function(listing)
    return _lines(_PROCESS, _ROOM, lambda room, lines: function(handle, room, lines))


def samples(handle: Any, since_us: int) -> Iterator[tuple[int, ...]]:  # noqa: ANN401  an opaque pointer
    """Return number, time stamp and percent of SMs, and more, of each line of the ring.

    Raises:
        NVMLError: the device does not answer; or there is nothing newer than `since_us`.
    """
    function = _function("nvmlDeviceGetProcessUtilization")
    count, since = ctypes.c_uint(0), ctypes.c_ulonglong(since_us)
    answer = function(handle, None, ctypes.byref(count), since)
    if answer != pynvml.NVML_ERROR_INSUFFICIENT_SIZE:
        # Success without a line as well: to the binding that is an error, which means idle.
        raise pynvml.NVMLError(answer)
    return _lines(_SAMPLE, count.value, lambda room, lines: function(handle, lines, room, since))


def _function(name: str) -> Callable[..., int]:
    try:
        found: Callable[..., int] = getattr(pynvml.nvmlLib, name)
    except AttributeError:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND) from None
    return found


def _lines(
    layout: struct.Struct, room: int, read: Callable[[Any, Any], int]
) -> Iterator[tuple[int, ...]]:
    """Return the lines that `read` writes, with as much room as it turns out to need."""
    while True:
        count, memory = ctypes.c_uint(room), bytearray(room * layout.size)
        place = (ctypes.c_char * len(memory)).from_buffer(memory)
        answer = read(ctypes.byref(count), place)
        if answer == pynvml.NVML_SUCCESS:
            return layout.iter_unpack(memoryview(memory)[: count.value * layout.size])
        if answer != pynvml.NVML_ERROR_INSUFFICIENT_SIZE:
            raise pynvml.NVMLError(answer)
        # Others may come before the next call.
        room = max(room, count.value) * 2
