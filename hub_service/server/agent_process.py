"""This node's agent as a child process of the service: environment, start and restarts."""

import asyncio
import logging
import os
import time
from collections.abc import Mapping
from typing import NoReturn

from runai.hub_service.processes.own_process import MODULE

LOG = logging.getLogger("runai.agent")

LONGEST_BACK_OFF_S = 30.0
WELL_AFTER_S = 60.0
"""Run time after which an agent counts as started well and the backoff is reset."""
LEAVES_WITHIN_S = 5.0

_PASSED_VARIABLES = (
    *("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "LANG"),
    *("RUNAI_GPUS", "RUNAI_SIMULATE", "RUNAI_AGENT_METRICS", "RUNAI_LOG_FORMAT"),
)


def agent_environment(
    environ: Mapping[str, str], *, url: str, token: str, node: str
) -> dict[str, str]:
    """Return the agent's environment, without secrets of the service."""
    passed = {name: environ[name] for name in _PASSED_VARIABLES if name in environ}
    return passed | {
        "RUNAI_API_URL": url,
        "RUNAI_AGENT_TOKEN": token,
        "RUNAI_AGENT_PARENT": str(os.getpid()),
        "RUNAI_NODE": node,
    }


async def supervise_agent(environment: Mapping[str, str]) -> NoReturn:
    """Start the agent, and restart it when it ends; stop it on cancellation."""
    failures = 0
    while True:
        began = time.monotonic()
        # `-P`: do not import a folder `runai` in the working directory.
        try:
            process = await asyncio.create_subprocess_exec(
                *MODULE, "runai.hub_service.agent", env=dict(environment)
            )
        except OSError as failed:  # no processes, memory or descriptors left
            LOG.warning("the agent cannot be started: %s", failed.strerror)
            await asyncio.sleep(LONGEST_BACK_OFF_S)
            continue
        try:
            status = await process.wait()
        finally:
            if process.returncode is None:
                await _stop_agent(process)
        failures = 1 if time.monotonic() - began > WELL_AFTER_S else failures + 1
        pause = min(0.5 * 2**failures, LONGEST_BACK_OFF_S)
        LOG.warning("the agent ended with status %s; next start in %.0f s", status, pause)
        await asyncio.sleep(pause)


async def _stop_agent(process: asyncio.subprocess.Process) -> None:
    """Stop the agent by SIGTERM, and by SIGKILL if it stays."""
    process.terminate()
    try:
        async with asyncio.timeout(LEAVES_WITHIN_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
