"""The `runai` command: what people type becomes a request, what comes back becomes a table.

Knows arguments, tables and exit codes; every decision is the service's, reached through
`runai.hub_service.client` alone. One file for each family of commands, imported when one of its
commands runs, so that `runai --help` starts as fast as Python does. Entry point: `main`.
"""

from runai.hub_service.cli.root import cli

__all__ = ["cli", "main"]


def main() -> None:
    """Run the command line; exit 0, 1 (said no, with a hint), 2 (misuse) or the job's own code."""
    cli(prog_name="runai")
