"""The container's entry point ends on SIGTERM, even while it is still importing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from waiting import eventually

BLOCKING_MODULE = """
import pathlib, time
pathlib.Path({import_started!r}).touch()
while True:
    time.sleep(1000)
"""


@pytest.mark.parametrize(
    ("arguments", "blocked_module"),
    [((), "uvicorn"), (("agent",), "psutil")],
    ids=["service", "agent"],
)
def test_sigterm_during_imports_ends_the_container_process_at_once(
    tmp_path, arguments, blocked_module
):
    """The kernel drops signals without a handler for a container's first process."""
    import_started, modules = tmp_path / "begun", tmp_path / "modules"
    modules.mkdir()
    (modules / f"{blocked_module}.py").write_text(
        BLOCKING_MODULE.format(import_started=str(import_started))
    )
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
            eventually(import_started.exists, within=120, what="it imports")
            process.send_signal(signal.SIGTERM)

            assert process.wait(30) == 0
        finally:
            process.kill()
