"""Keep this node's agent running as a child of the service.

Knows how to start it, what to hand it, and when to try again. Leaves measuring to the agent. Owned
by the composition root.
"""

import asyncio
import logging
import os
import sys
import time
from collections.abc import Mapping
from typing import NoReturn

LOG = logging.getLogger("runai.agent")

LONGEST_BACK_OFF_S = 30.0
WELL_AFTER_S = 60.0
"""An agent that ran so long had a good start: the next one is started without delay."""
LEAVES_WITHIN_S = 5.0

_HANDED_ON = (
    *("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "LANG"),
    *("RUNAI_GPUS", "RUNAI_SIMULATE", "RUNAI_AGENT_METRICS", "RUNAI_LOG_FORMAT"),
)


def agent_environment(
    environ: Mapping[str, str], *, url: str, token: str, node: str
) -> dict[str, str]:
    """Return the agent's environment: what it needs, and no secret of the service."""
    handed = {name: environ[name] for name in _HANDED_ON if name in environ}
    return handed | {
        "RUNAI_API_URL": url,
        "RUNAI_AGENT_TOKEN": token,
        "RUNAI_AGENT_PARENT": str(os.getpid()),
        "RUNAI_NODE": node,
    }


async def keep_agent_running(environment: Mapping[str, str]) -> NoReturn:
    """Start the agent, and again when it ends, until cancelled; takes it along then."""
    failures = 0
    while True:
        began = time.monotonic()
        # `-P`: a folder `runai` where the service happens to run is not the package.
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", "runai.hub_service.agent", env=dict(environment)
            )
        except OSError as failed:  # a bomb has all processes, or all memory, or all descriptors
            LOG.warning("the agent cannot be started: %s", failed.strerror)
            await asyncio.sleep(LONGEST_BACK_OFF_S)
            continue
        try:
            status = await process.wait()
        finally:
            if process.returncode is None:
                await _end(process)
        failures = 1 if time.monotonic() - began > WELL_AFTER_S else failures + 1
        pause = min(0.5 * 2**failures, LONGEST_BACK_OFF_S)
        LOG.warning("the agent ended with status %s; next start in %.0f s", status, pause)
        await asyncio.sleep(pause)


async def _end(process: asyncio.subprocess.Process) -> None:
    process.terminate()
    try:
        async with asyncio.timeout(LEAVES_WITHIN_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
