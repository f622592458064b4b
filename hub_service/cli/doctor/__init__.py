"""What `runai doctor` answers with: one finding for each question."""

from typing import Literal, NamedTuple


class Finding(NamedTuple):
    """The answer to one question."""

    verdict: Literal["ok", "note", "failure"]
    subject: str
    text: str
    mend: str = ""
