"""Checks of `runai doctor`, and their result type."""

from typing import Literal, NamedTuple


class Finding(NamedTuple):
    """Result of one check; `mend` is the remedy."""

    verdict: Literal["ok", "note", "failure"]
    subject: str
    text: str
    mend: str = ""
