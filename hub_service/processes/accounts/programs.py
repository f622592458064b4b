"""Programs that ask about accounts, each in a process that is ended if it is late."""

import asyncio
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from runai.hub_service.processes.shell_environment import python_variables

WITHIN_S: Final = 5.0
ENDS_WITHIN_S: Final = 1.0


async def query(command: Sequence[str], within_s: float = WITHIN_S) -> dict[str, Any] | None:
    """Return the JSON objects that a program prints in time, as one; None: there are none.

    Raises:
        OSError: the machine has no process or descriptor left.
        ValueError: an argument has a null character.
    """
    program = await asyncio.create_subprocess_exec(
        *command,
        cwd="/",
        env=python_variables(os.environ),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    lines: list[bytes] = []
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                assert program.stdout is not None
                while line := await program.stdout.readline():
                    lines.append(line)  # also those before a silence
    finally:
        if program.returncode is None:
            with suppress(ProcessLookupError, TimeoutError):
                program.kill()
                async with asyncio.timeout(ENDS_WITHIN_S):  # not one that waits for a disk
                    await program.wait()
    reply: dict[str, Any] = {}
    for line in lines:
        with suppress(ValueError):
            reply |= json.loads(line)
    return reply or None
