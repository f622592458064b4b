"""The `runai` command: what people type becomes a request, what comes back becomes a table.

Every decision is the service's, reached through `runai.hub_service.client` alone. A file of
`commands` is imported when one of its commands runs, so that `runai --help` starts as fast as
Python does. Entry point: `main`.
"""

from runai.hub_service.cli.framework.command_list import cli

__all__ = ["cli", "main"]


def main() -> None:
    """Run the command line; exit 0, 1 (said no, with a hint), 2 (misuse) or the job's own code."""
    cli(prog_name="runai")
