"""The words for shares of device memory that pages, notebooks and the terminal have in common."""

COMPUTE_IS_SHARED = "Memory is limited, compute is shared equally among active sessions."
"""Stands beside every fraction."""


def gib(mib: int) -> str:
    """Write an amount of memory.

    >>> gib(71885)
    '70.2 GiB'
    """
    return f"{mib / 1024:.1f} GiB"
