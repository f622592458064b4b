"""Warnings that are logged once per process, not at each of a million micro-batches.

They go to the logger `runai`, which the program may configure.
"""

from __future__ import annotations

import logging

_LOGGED: set[str] = set()


def notice(text: str) -> None:
    """Log a warning, unless this process has logged the same one."""
    if text not in _LOGGED:
        _LOGGED.add(text)
        logging.getLogger("runai").warning(text)
