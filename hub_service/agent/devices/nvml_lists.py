"""Fast readers of NVML's process lists and samples, straight from the driver's memory.

The lists can have hundreds of entries a second. The binding's functions build a Python object for
each entry, field by field, which would be most of a poll's cost. The layouts are as the binding
declares them.
"""

import ctypes
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pynvml

_PROCESS = struct.Struct("@IQII")
"""nvmlProcessInfo_t, versions 2 and 3: PID, bytes, GPU instance id, compute instance id."""

_SAMPLE = struct.Struct("@IQ4I")
"""nvmlProcessUtilizationSample_t: PID, µs, and percent of SMs, memory, encoder and decoder."""

_INITIAL_ROOM = 64
"""Initial buffer size in processes; a longer list needs a second call."""

NOT_AVAILABLE = 0xFFFF_FFFF_FFFF_FFFF
"""Value in place of a process's bytes if the driver does not report them."""


def processes(listing: str, handle: Any) -> Iterator[tuple[int, ...]]:  # noqa: ANN401  an opaque pointer
    """Return PID, bytes (or `NOT_AVAILABLE`), GPU and compute instance of each process.

    Raises:
        NVMLError: the device does not answer, or has no such list.
    """
    function = _function(listing)
    return _read_entries(_PROCESS, _INITIAL_ROOM, lambda room, lines: function(handle, room, lines))


def samples(handle: Any, since_us: int) -> Iterator[tuple[int, ...]]:  # noqa: ANN401  an opaque pointer
    """Return each sample in the ring buffer: PID, time stamp (µs), percent of SMs and more.

    Raises:
        NVMLError: the device does not answer, or has no sample newer than `since_us`.
    """
    function = _function("nvmlDeviceGetProcessUtilization")
    count, since = ctypes.c_uint(0), ctypes.c_ulonglong(since_us)
    answer = function(handle, None, ctypes.byref(count), since)
    if answer != pynvml.NVML_ERROR_INSUFFICIENT_SIZE:
        # Also raised, as by the binding: success without samples, which callers treat as idle.
        raise pynvml.NVMLError(answer)
    return _read_entries(
        _SAMPLE, count.value, lambda room, lines: function(handle, lines, room, since)
    )


def _function(name: str) -> Callable[..., int]:
    try:
        found: Callable[..., int] = getattr(pynvml.nvmlLib, name)
    except AttributeError:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND) from None
    return found


def _read_entries(
    layout: struct.Struct, room: int, read: Callable[[Any, Any], int]
) -> Iterator[tuple[int, ...]]:
    """Return the entries that `read` writes; enlarge the buffer until they fit."""
    while True:
        count, memory = ctypes.c_uint(room), bytearray(room * layout.size)
        buffer = (ctypes.c_char * len(memory)).from_buffer(memory)
        answer = read(ctypes.byref(count), buffer)
        if answer == pynvml.NVML_SUCCESS:
            return layout.iter_unpack(memoryview(memory)[: count.value * layout.size])
        if answer != pynvml.NVML_ERROR_INSUFFICIENT_SIZE:
            raise pynvml.NVMLError(answer)
        # Twice as much: more processes may start before the next call.
        room = max(room, count.value) * 2
