"""The API keeps to its OpenAPI document, whatever it is asked for that the document allows.

And refuses what the document does not allow: all checks of schemathesis, as every role; what is
left out is in `schemathesis.toml`, with its reason. A few requests of each route in `make test`,
every boundary of every field, and sequences of requests, in `make test-long`.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import httpx
import pytest

WHO = ("root", "vic", "ana", "mia", "ro", "nel", "out", "hub", "agent", "worker", "nobody")
CONFIGURATION = Path(__file__).with_name("schemathesis.toml")


async def asked(url: str, who: str, *how: str) -> tuple[int, str]:
    """Let schemathesis ask as somebody; return its verdict and what it says."""
    document = f"{url}api/v1/openapi.json"
    async with httpx.AsyncClient(timeout=300) as http:
        # Put together once; schemathesis waits ten seconds for it, a busy machine takes longer.
        (await http.get(document)).raise_for_status()
    process = await asyncio.create_subprocess_exec(
        str(Path(sys.executable).with_name("schemathesis")),
        "--config-file",
        str(CONFIGURATION),
        "run",
        document,
        "--header",
        f"Authorization: Bearer {who}-token",
        "--exclude-path-regex",
        "events",  # has no end
        "--suppress-health-check",
        "all",  # a busy machine is no finding
        "--request-timeout",
        "120",  # nor is it here
        "--generation-deterministic",
        "--no-color",
        *how,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    return process.returncode or 0, output.decode()


@pytest.mark.timeout(600)  # half a minute, but for a busy machine
async def test_a_few_requests_of_each_route_get_only_documented_answers(simulated):
    verdict, output = await asked(
        simulated.url, "ana", "--phases", "fuzzing", "--max-examples", "2"
    )

    assert verdict == 0, output[-6000:]


@pytest.mark.timeout(3600)  # thousands of requests; a busy machine takes a quarter of an hour
@pytest.mark.slow
@pytest.mark.parametrize("who", WHO)
async def test_generated_requests_get_only_documented_answers(simulated, who):
    verdict, output = await asked(
        simulated.url, who, "--max-examples", "5", "--continue-on-failure"
    )

    print(output[-400:])
    assert verdict == 0, output[-9000:]
