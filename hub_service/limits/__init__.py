"""Keep a workload within its share of a device's memory, and say how strictly it is kept."""

import os
from pathlib import Path

HOOK = str(Path(__file__).with_name("hook"))
"""A folder that only interpreters of workloads have on their path."""


def with_hook(pythonpath: str, hook: str = HOOK) -> str:
    """Return a PYTHONPATH that begins with the hook and goes on as given, each folder once.

    >>> with_hook("/home/ana/lib:/hook", hook="/hook")
    '/hook:/home/ana/lib'
    """
    rest = (folder for folder in pythonpath.split(os.pathsep) if folder)
    return os.pathsep.join(dict.fromkeys([hook, *rest]))
