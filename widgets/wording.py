"""Formatting of amounts, and suggestions for misspelled names. Pure."""

import difflib
from collections.abc import Iterable

MIB_PER_GIB = 1024


def gpus(amount: float | None) -> str:
    """Format an amount of GPUs with at most three decimals; None is unlimited.

    >>> gpus(2.0), gpus(0.35), gpus(1 / 3), gpus(None)
    ('2', '0.35', '0.333', '∞')
    """
    return "∞" if amount is None else f"{round(amount, 3):g}"


def count(number: int, noun: str) -> str:
    """Format a number with its noun.

    >>> count(1, "pause"), count(3, "pause")
    ('1 pause', '3 pauses')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"


def percent(part: float | None, whole: float) -> str:
    """Format the utilized part of an allocation as a percentage; a dash if unknown.

    >>> percent(0.25, 0.5), percent(None, 1), percent(0, 0)
    ('50 %', '-', '-')
    """
    return "-" if part is None or whole <= 0 else f"{100 * part / whole:.0f} %"


def beside_gpus(cpu: float, memory_mib: int) -> str:
    """Format the CPU and memory that a workload requests, "" if it requests none.

    >>> beside_gpus(1, 512), beside_gpus(2.5, 0), beside_gpus(0, 2048), beside_gpus(0, 0)
    ('1 CPU and 512 MiB of memory', '2.5 CPUs', '2 GiB of memory', '')
    """
    parts = [f"{gpus(cpu)} CPU{'' if cpu == 1 else 's'}"] if cpu else []
    if memory_mib:
        is_small = memory_mib < MIB_PER_GIB
        amount = f"{memory_mib} MiB" if is_small else f"{memory_mib / MIB_PER_GIB:.3g} GiB"
        parts.append(f"{amount} of memory")
    return " and ".join(parts)


def did_you_mean(wrong: str, known: Iterable[str]) -> str:
    """Return a suggestion for a misspelled name, "" without a close match.

    >>> did_you_mean("tran.py", ["train.py", "notes.md"])
    'Did you mean train.py?'
    >>> did_you_mean("x", ["train.py"])
    ''
    """
    near = difflib.get_close_matches(wrong, list(known), n=1, cutoff=0.7)
    return f"Did you mean {near[0]}?" if near else ""
