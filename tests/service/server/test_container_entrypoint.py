"""The container's entry point ends on SIGTERM, even while it is still importing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from waiting import eventually

BLOCKS = """
import pathlib, time
pathlib.Path({begun!r}).touch()
while True:
    time.sleep(1000)
"""


@pytest.mark.parametrize(
    ("arguments", "imported"),
    [((), "uvicorn"), (("agent",), "psutil")],
    ids=["the service", "an agent"],
)
def test_sigterm_during_imports_ends_the_container_process_at_once(tmp_path, arguments, imported):
    """The kernel drops signals without a handler for a container's first process."""
    begun, modules = tmp_path / "begun", tmp_path / "modules"
    modules.mkdir()
    (modules / f"{imported}.py").write_text(BLOCKS.format(begun=str(begun)))
    command = [
        sys.executable,
        "-P",
        "-m",
        "runai.hub_service.server.container_entrypoint",
        *arguments,
    ]
    environment = {**os.environ, "PYTHONPATH": str(modules)}
    with subprocess.Popen(command, env=environment) as process:
        try:
            eventually(begun.exists, within=120, what="it imports")
            process.send_signal(signal.SIGTERM)

            assert process.wait(30) == 0
        finally:
            process.kill()
