"""One line below errors about device memory, in notebooks and IPython.

After an out-of-memory error: the size of the share, and the kernels that use it. After an interrupt
by the platform: the reason, and again below the first cell of a kernel that follows an ended one.
Registered as an IPython event, so that tracebacks and other handlers
stay as they are.
"""

from __future__ import annotations

from .after_import import swallowed
from .service_query import query_service

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType
    from typing import Any

OUT_OF_MEMORY = {"OutOfMemoryError", "ResourceExhaustedError"}
"""Exception names of PyTorch, TensorFlow and CuPy, compared without importing them."""


def watch_shells(module: ModuleType) -> None:
    """Register `_after_cell` in every shell created from now on."""
    shell_class: Any = module.InteractiveShell
    original = shell_class.__init__

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401, N807
        original(self, *args, **kwargs)
        swallowed("notebook", self.events.register, "post_run_cell", _after_cell)

        def after_first(_result: Any) -> None:  # noqa: ANN401  IPython's ExecutionResult
            self.events.unregister("post_run_cell", after_first)
            swallowed("notebook", _print_previous_kernel_end)

        swallowed("notebook", self.events.register, "post_run_cell", after_first)

    shell_class.__init__ = __init__


def _after_cell(result: Any) -> None:  # noqa: ANN401  IPython's ExecutionResult
    error = result.error_in_exec
    if error is not None:
        swallowed("notebook", _print_hint, error)


def _print_hint(error: BaseException) -> None:
    import os  # noqa: PLC0415  needed after an error only
    import sys  # noqa: PLC0415

    line = line_after(error, os.environ)
    if line:
        sys.stderr.write(line + "\n")
        sys.stderr.flush()


def _print_previous_kernel_end() -> None:
    """Print why the platform ended the session's last kernel, if it did."""
    import os  # noqa: PLC0415  needed once
    import sys  # noqa: PLC0415

    from .share import Share  # noqa: PLC0415

    if Share.of(os.environ) is None:
        return  # nothing here has a limit
    notice = str(query_service(os.environ).get("notice", ""))
    if "is told to end" in notice or "is killed" in notice:
        sys.stderr.write(f"A kernel was ended before this one began: your session {notice}.\n")
        sys.stderr.flush()


def line_after(error: BaseException, environ: Mapping[str, str]) -> str:
    """Return the line to print below an error; "" for errors of other kinds."""
    if isinstance(error, KeyboardInterrupt):
        notice = str(query_service(environ).get("notice", ""))
        return f"Your session {notice}." if "interrupt" in notice else ""
    if not is_out_of_memory(error):
        return ""
    from .share import Share  # noqa: PLC0415

    share = Share.of(environ)
    return "" if share is None else _line(share, query_service(environ).get("processes", []))


def is_out_of_memory(error: BaseException) -> bool:
    """Return True for a framework's out-of-memory error."""
    if any(base.__name__ in OUT_OF_MEMORY for base in type(error).__mro__):
        return True
    return type(error).__name__.endswith("RuntimeError") and "RESOURCE_EXHAUSTED" in str(error)


def _line(share: Any, processes: list[dict[str, Any]]) -> str:  # noqa: ANN401  a Share
    """Return a sentence with the session's share, and the programs that use it."""
    limit, total = share.limits_mib[0], (share.devices_mib or (0,))[0]
    if limit is None:
        sentence = f"Your session has a whole GPU of {total / 1024:.1f} GiB"
    else:
        sentence = f"Your session's GPU share is {limit / 1024:.1f} GiB"
        sentence += f" of {total / 1024:.1f}" if total else ""
    used: dict[str, int] = {}
    for process in processes:
        used[process["name"]] = used.get(process["name"], 0) + (process["memory_mib"] or 0)
    if not used:
        return sentence + "."
    names = sorted(used, key=lambda name: (-used[name], name))
    kind = "kernels " if all(name.endswith(".ipynb") for name in names) else ""
    by = ", ".join(f"{name} ({used[name] / 1024:.1f})" for name in names)
    return f"{sentence}; {sum(used.values()) / 1024:.1f} in use by {kind}{by}."
