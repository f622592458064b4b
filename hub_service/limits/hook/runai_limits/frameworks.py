"""Memory limits of PyTorch and TensorFlow, set when they first use a device.

Not at import: that would create a CUDA context, which costs memory and breaks forked workers. JAX
and CuPy read their limit from the environment. A program's own limit stays if it is tighter.
"""

from __future__ import annotations

from .after_import import swallowed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .share import Share


def cap_torch(torch: Any, share: Share) -> None:  # noqa: ANN401  the module
    """Register a callback that PyTorch runs when it initialises CUDA."""
    torch.cuda._lazy_call(  # noqa: SLF001  the only way without creating a context
        lambda: swallowed("torch", _cap_torch_now, torch.cuda, share)
    )


def _cap_torch_now(cuda: Any, share: Share) -> None:  # noqa: ANN401
    """Limit the memory of each device, unless the program has chosen less."""
    current = cuda.current_device()
    for index in range(cuda.device_count()):
        fraction = share.fraction(index, cuda.get_device_properties(index).total_memory)
        if fraction is None:
            continue
        # Older releases lack this getter; there a program cannot set the fraction before CUDA is
        # initialised, so it has set none yet.
        chosen = getattr(cuda, "get_per_process_memory_fraction", lambda _device: 1.0)(index)
        if fraction < chosen:
            cuda.set_per_process_memory_fraction(fraction, index)
    cuda.set_device(current)  # older releases leave the last device selected


def cap_tensorflow(context_module: Any, share: Share) -> None:  # noqa: ANN401  …eager.context
    """Configure the devices just before TensorFlow creates them, after the program's settings."""
    context_class = context_module.Context
    original = context_class.ensure_initialized

    def ensure_initialized(self: Any) -> None:  # noqa: ANN401
        context_class.ensure_initialized = original  # every operation calls it: patch it once
        swallowed("tensorflow", _cap_tensorflow_now, self, context_module, share)
        original(self)

    context_class.ensure_initialized = ensure_initialized


def _cap_tensorflow_now(context: Any, context_module: Any, share: Share) -> None:  # noqa: ANN401
    """Limit the memory of each device, unless the program has chosen less or several parts."""
    for index, device in enumerate(context.list_physical_devices("GPU")):
        usable = share.usable_mib(index)
        if usable is None:
            continue
        chosen = context.get_logical_device_configuration(device)
        if chosen and (len(chosen) > 1 or (chosen[0].memory_limit or usable + 1) <= usable):
            continue
        configuration = context_module.LogicalDeviceConfiguration(memory_limit=usable)
        context.set_logical_device_configuration(device, [configuration])
