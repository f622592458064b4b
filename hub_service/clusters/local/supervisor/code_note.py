"""Note of a worker's code at its start: digests of its command's files, its commit, its Python.

A process of its own writes it, none of the worker's tree: neither the start nor the end waits for a
disk. Standard library only, like all of the supervisor's program (`subreaper.py`).
"""

import contextlib
import importlib
import json
import os
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or __package__:
    from runai.hub_service.clusters.local.supervisor import account_reader, exit_notes
    from runai.hub_service.processes import program_files
else:  # in the subreaper's program, which extends sys.path
    import account_reader
    import exit_notes
    import program_files

PYTHON_WITHIN_S = 1.0
"""Seconds in which the worker's first start makes the user's Python environment."""
READ_WITHIN_S = 2.0
"""Seconds for the reading. Later there is no note, and the platform says nothing."""


def begin_note(directory: str, status_fd: int) -> None:
    """Start the reading, and return at once; its result is the note `code.json`."""
    with contextlib.suppress(OSError):  # without a process on the machine there is no note
        if between := os.fork():
            os.waitpid(between, 0)
            return
        try:
            if os.fork() == 0:  # an orphan, so that no zombie stays beside the worker
                os.close(status_fd)
                _write_note(directory)
        finally:
            os._exit(0)


def _write_note(directory: str) -> None:
    os.chdir(directory)  # another job of this name may have the path before the note is written
    with open("spec.json", encoding="utf-8") as file:  # noqa: PTH123
        spec: dict[str, Any] = json.load(file)
    if (names := spec["code"]) is None:
        return
    if names:
        importlib.import_module("hashlib")  # the worker's account may not read the library

    def read() -> bytes:
        note = program_files.read_code(spec["workdir"], names)
        until = time.monotonic() + PYTHON_WITHIN_S
        while spec["python"] and time.monotonic() < until:
            if os.path.exists(spec["python"]["program"]):  # noqa: PTH110
                break
            time.sleep(0.02)
        note["python"] = program_files.python_of(spec["command"][0], spec["workdir"], spec["path"])
        return json.dumps(note).encode()

    if (answer := account_reader.answer_of(read, spec, READ_WITHIN_S)) is not None:
        exit_notes.write_whole("./code.json", json.loads(answer))
