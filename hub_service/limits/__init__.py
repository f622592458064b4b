"""Enforcement of device memory shares, and the tiers in which they are enforced."""

import os
from pathlib import Path

HOOK = str(Path(__file__).with_name("hook"))
"""Folder on the path of workloads' interpreters only."""


def with_hook(pythonpath: str, hook: str = HOOK) -> str:
    """Return a PYTHONPATH with the hook first, then the given folders, each once.

    >>> with_hook("/home/ana/lib:/hook", hook="/hook")
    '/hook:/home/ana/lib'
    """
    rest = (folder for folder in pythonpath.split(os.pathsep) if folder)
    return os.pathsep.join(dict.fromkeys([hook, *rest]))
