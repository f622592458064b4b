"""`runai up`: replace this process by `runai.embedded` with unchanged arguments.

That program has its own help and exit codes.
"""

import importlib.util
import os
import sys
from typing import Final

import click

from runai.hub_service.cli.framework.reporting import Command, not_installed

_AS_THEY_STAND: Final = {"ignore_unknown_options": True, "help_option_names": []}


@click.command(cls=Command, context_settings=_AS_THEY_STAND, add_help_option=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def up(arguments: tuple[str, ...]) -> None:
    """Start the whole platform on this machine.

    JupyterHub, the GPU service and its agent, on 127.0.0.1; Ctrl-C stops them, jobs go on.
    `runai up --help` shows its options.
    """
    if importlib.util.find_spec("jupyterhub") is None:
        raise not_installed()
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "runai.embedded", *arguments])  # noqa: S606 - our own module
