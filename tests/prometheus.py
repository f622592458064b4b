"""A real Prometheus for tests that have the capability `prometheus`."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx


@asynccontextmanager
async def prometheus(
    source: Mapping[str, Any], folder: Path, port: int
) -> AsyncIterator[Callable[[str], Awaitable[Any]]]:
    """Run a Prometheus that reads one source (an entry of `scrape_configs`, without its name).

    Yields a function that runs a query and returns its result, None during the start.
    """
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
        "scrape_configs": [{"job_name": "runai", **source}],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))
    address = f"127.0.0.1:{port}"
    server = await asyncio.create_subprocess_exec(
        "prometheus",
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'prometheus'}",
        f"--web.listen-address={address}",
        "--log.level=error",
        env={"PATH": os.environ["PATH"]},
    )
    try:
        async with httpx.AsyncClient(base_url=f"http://{address}", timeout=60) as http:

            async def query(expression: str) -> Any:
                try:
                    reply = await http.get("/api/v1/query", params={"query": expression})
                except httpx.TransportError:
                    return None
                if reply.status_code == 503:  # it listens, but is not ready yet
                    return None
                answer = reply.json()
                assert answer["status"] == "success", (expression, answer)
                return answer["data"]["result"]

            yield query
    finally:
        server.send_signal(signal.SIGTERM)
        await server.wait()
