"""Magics and live views for notebooks: `%load_ext runai.widgets`, then `%runai_submit train.py`.

The same in Python: `submit`, `panel`, `quota`, `status`. The first call connects to the platform.
The names in `__all__` are the whole public interface.
"""

from runai.hub_service.processes.requirements import naming_libraries

with naming_libraries():
    from IPython.core.interactiveshell import InteractiveShell

    from runai.widgets.jobs import Job, Jobs, submit
    from runai.widgets.link import connect

    # `panel` is the function from here on; its module of the same name is already imported.
    from runai.widgets.panel import panel, quota, status

__all__ = ["Job", "Jobs", "connect", "load_ipython_extension", "panel", "quota", "status", "submit"]


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Register the magics, for `%load_ext runai.widgets`."""
    from runai.widgets.magics import RunaiMagics  # noqa: PLC0415 - only a shell needs them

    shell.register_magics(RunaiMagics)
