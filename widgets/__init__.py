"""Magics and live views for notebooks: `%load_ext runai.widgets`, then `%runai_submit train.py`.

The same in Python: `submit`, `panel`, `quota`, `status`. Knows the platform only through its
client; nothing is connected before it is asked for. The names here are the whole public interface.
"""

from IPython.core.interactiveshell import InteractiveShell

from runai.widgets.jobs import Job, Jobs, submit
from runai.widgets.link import connect

# From here on `panel` is the function; the module of that name is imported already.
from runai.widgets.panel import panel, quota, status

__all__ = ["Job", "Jobs", "connect", "load_ipython_extension", "panel", "quota", "status", "submit"]


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Register the magics; IPython calls it for `%load_ext runai.widgets`."""
    from runai.widgets.magics import RunaiMagics  # noqa: PLC0415 - only a shell needs them

    shell.register_magics(RunaiMagics)
