"""The API keeps to its OpenAPI document, whatever it is asked for that the document allows."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest


@pytest.mark.timeout(900)  # thousands of requests; a busy machine takes minutes
@pytest.mark.slow
@pytest.mark.parametrize("who", ["root", "ana"])
async def test_generated_requests_get_only_documented_answers(simulated, who):
    process = await asyncio.create_subprocess_exec(
        str(Path(sys.executable).with_name("schemathesis")),
        "run",
        f"{simulated.url}api/v1/openapi.json",
        "--header",
        f"Authorization: Bearer {who}-token",
        "--checks",
        "not_a_server_error,status_code_conformance,content_type_conformance,"
        "response_schema_conformance",
        "--exclude-path-regex",
        "events",  # has no end
        "--max-examples",
        "8",
        "--generation-deterministic",
        "--no-color",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()

    assert process.returncode == 0, output.decode()[-6000:]
