"""The `runai` command: requests to the service, and replies as tables.

The service makes every decision; `runai.hub_service.client` is the only way to it. A module of
`commands` is imported when one of its commands runs, so that `runai --help` starts as fast as
Python does. Entry point: `main`.
"""

from runai.hub_service.cli.framework.command_list import cli
from runai.hub_service.cli.framework.reporting import run

__all__ = ["cli", "main"]


def main() -> None:
    """Run the command line. Exit codes: 0, 1 (error, with a hint), 2 (misuse), the job's own."""
    run(lambda: cli(prog_name="runai"))
