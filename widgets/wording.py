"""Small words for sentences: amounts, near misses. Pure; used by all texts."""

import difflib
from collections.abc import Iterable


def gpus(amount: float | None) -> str:
    """Write an amount of GPUs without needless decimals; an unlimited one as a sign.

    >>> gpus(2.0), gpus(0.35), gpus(1 / 3), gpus(None)
    ('2', '0.35', '0.333', '∞')
    """
    return "∞" if amount is None else f"{round(amount, 3):g}"


def count(number: int, noun: str) -> str:
    """Write a number with its noun.

    >>> count(1, "pause"), count(3, "pause")
    ('1 pause', '3 pauses')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"


def measured(amount: float) -> str:
    """Write a measured amount of GPUs: it is not exact to the thousandth.

    >>> measured(1.6254)
    '1.63'
    """
    return f"{round(amount, 2):g}"


def percent(part: float | None, whole: float) -> str:
    """Write how much of what is allocated is kept busy; a dash where nothing is known.

    >>> percent(0.25, 0.5), percent(None, 1), percent(0, 0)
    ('50 %', '-', '-')
    """
    return "-" if part is None or whole <= 0 else f"{100 * part / whole:.0f} %"


def did_you_mean(wrong: str, known: Iterable[str]) -> str:
    """Return the question that a near miss deserves, or nothing.

    >>> did_you_mean("tran.py", ["train.py", "notes.md"])
    'Did you mean train.py?'
    >>> did_you_mean("x", ["train.py"])
    ''
    """
    near = difflib.get_close_matches(wrong, list(known), n=1, cutoff=0.7)
    return f"Did you mean {near[0]}?" if near else ""
