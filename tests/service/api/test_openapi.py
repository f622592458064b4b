"""The API conforms to its OpenAPI document for every request that the document allows.

It refuses requests that the document does not allow. All checks of schemathesis run as every role;
`schemathesis.toml` lists the exceptions with their reasons. `make test` sends a few requests to
each route, `make test-long` every boundary of every field, and sequences of requests.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import httpx
import pytest

ACTOR_NAMES = ("root", "vic", "ana", "mia", "ro", "nel", "out", "hub", "agent", "worker", "nobody")
CONFIGURATION = Path(__file__).with_name("schemathesis.toml")


async def run_schemathesis(url: str, actor_name: str, *options: str) -> tuple[int, str]:
    """Run schemathesis with an actor's token; return its verdict and its output."""
    document = f"{url}api/v1/openapi.json"
    async with httpx.AsyncClient(timeout=300) as http:
        # Build the document once: schemathesis waits 10 s for it, and a busy machine takes longer.
        (await http.get(document)).raise_for_status()
    process = await asyncio.create_subprocess_exec(
        str(Path(sys.executable).with_name("schemathesis")),
        "--config-file",
        str(CONFIGURATION),
        "run",
        document,
        "--header",
        f"Authorization: Bearer {actor_name}-token",
        "--exclude-path-regex",
        "events",  # has no end
        "--suppress-health-check",
        "all",  # a slow answer of a busy machine is no finding
        "--request-timeout",
        "120",  # for the same reason
        "--generation-deterministic",
        "--no-color",
        *options,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    return process.returncode or 0, output.decode()


@pytest.mark.timeout(600)  # half a minute, but for a busy machine
async def test_few_fuzzed_requests_of_each_api_route_get_only_documented_replies(simulated):
    verdict, output = await run_schemathesis(
        simulated.url, "ana", "--phases", "fuzzing", "--max-examples", "2"
    )

    assert verdict == 0, output[-6000:]


@pytest.mark.timeout(3600)  # thousands of requests; a busy machine takes a quarter of an hour
@pytest.mark.slow
@pytest.mark.parametrize("actor_name", ACTOR_NAMES)
async def test_fuzzed_api_requests_get_only_documented_replies(simulated, actor_name):
    verdict, output = await run_schemathesis(
        simulated.url, actor_name, "--max-examples", "5", "--continue-on-failure"
    )

    print(output[-400:])
    assert verdict == 0, output[-9000:]
