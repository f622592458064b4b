"""The `runai` command: requests to the service, and replies as tables.

The service makes every decision; `runai.hub_service.client` is the only way to it. A module of
`commands` is imported when one of its commands runs, so that `runai --help` starts as fast as
Python does; `runai status` without other options imports no command line at all. Entry point:
`main`.
"""

import sys
from typing import Final

_PROMPT: Final = (["status"], ["status", "-o", "text"], ["status", "-o", "json"])
"""Arguments for a shell's prompt, which waits for the imports."""


def main() -> None:
    """Run the command line. Exit codes: 0, 1 (error, with a hint), 2 (misuse), the job's own."""
    if sys.argv[1:] in _PROMPT:
        from runai.hub_service.client.prompt import print_status_line  # noqa: PLC0415

        sys.exit(print_status_line(as_json="json" in sys.argv))
    try:
        # Their libraries may be missing or too old.
        from runai.hub_service.cli.framework.command_list import cli  # noqa: PLC0415
        from runai.hub_service.cli.framework.error_reporting import run  # noqa: PLC0415

        run(lambda: cli(prog_name="runai"))
    except Exception:
        from runai.hub_service.processes.requirements import (  # noqa: PLC0415
            in_words,
            install_command,
            unmet_here,
        )

        if not (found := unmet_here()):
            raise
        text = f"The libraries of `runai` do not fit: {in_words(found)}."
        sys.exit(f"Error: {text}\nHint: {install_command(found)}")
