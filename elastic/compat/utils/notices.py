"""Say something once: what a user should know, but not at each of a million micro-batches.

Knows what was said in this process. Goes through the logger `runai`, so that a program which
configures logging decides where it is seen. Called by the packages of the original names.
"""

from __future__ import annotations

import logging

_SAID: set[str] = set()


def notice(text: str) -> None:
    """Log a warning, unless the same was said before in this process."""
    if text not in _SAID:
        _SAID.add(text)
        logging.getLogger("runai").warning(text)
