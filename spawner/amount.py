"""Parser of amounts of GPU as people write them.

Pure: text or a number from a form or the REST API becomes an `Amount` or one error sentence.
"""

import math
import re
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import Final

from runai.hub_service.wire.amounts import MOST_MEMORY_MIB
from runai.hub_service.wire.errors import InvalidRequest

MOST_GPUS: Final = 1024
LONGEST_TEXT: Final = 40
_MIB_PER_UNIT: Final = {"m": 1, "g": 1024, "t": 1024 * 1024}
_SIGNS: Final = {"¼": "1/4", "½": "1/2", "¾": "3/4", "⅓": "1/3", "⅔": "2/3", "⅛": "1/8"}
_NOTHING: Final = frozenset({"none", "no", "no gpu", "without", "without a gpu", "cpu"})
_MEMORY: Final = re.compile(r"(\d+(?:[.,]\d+)?)\s*([mgt])(?:i?b)?", re.IGNORECASE)
_GPUS: Final = re.compile(r"([\d.,]+(?:\s*/\s*\d+)?%?)\s*(?:gpus?)?", re.IGNORECASE)
_HINT: Final = "Write a part of a GPU such as 0.35, whole GPUs such as 2, or memory such as 8 GiB."


@dataclass(frozen=True, slots=True)
class Amount:
    """Thousandths of a GPU, or MiB of one GPU's memory; both zero: no GPU."""

    milli_gpus: int = 0
    memory_mib: int = 0

    @property
    def gpus(self) -> Decimal:
        """Return the number of GPUs, 0.5 for a half."""
        return (Decimal(self.milli_gpus) / 1000).normalize()

    @property
    def is_nothing(self) -> bool:
        """Return True if it requests no GPU."""
        return not (self.milli_gpus or self.memory_mib)

    def text(self) -> str:
        """Return short text that `parse_amount` parses back.

        >>> Amount(milli_gpus=350).text(), Amount(memory_mib=8192).text(), Amount().text()
        ('0.35', '8 GiB', '0')
        """
        if self.memory_mib:
            gib, rest = divmod(self.memory_mib, 1024)
            return f"{self.memory_mib} MiB" if rest else f"{gib} GiB"
        return f"{self.gpus:f}"

    def in_words(self) -> str:
        """Return words for a sentence.

        >>> Amount(milli_gpus=500).in_words(), Amount(memory_mib=8192).in_words()
        ('0.5 GPUs', '8 GiB of GPU memory')
        """
        if self.is_nothing:
            return "a session without a GPU"
        if self.memory_mib:
            return f"{self.text()} of GPU memory"
        return "1 GPU" if self.milli_gpus == 1000 else f"{self.text()} GPUs"


NO_GPU: Final = Amount()


def parse_amount(written: object) -> Amount:
    """Parse an amount from user input.

    >>> parse_amount("0.35"), parse_amount("½"), parse_amount("8 GiB")
    (Amount(milli_gpus=350, memory_mib=0), Amount(milli_gpus=500, memory_mib=0), \
Amount(milli_gpus=0, memory_mib=8192))

    Raises:
        InvalidRequest: it is no amount, or not a possible share of GPUs.
    """
    if isinstance(written, bool) or not isinstance(written, str | int | float):
        raise InvalidRequest("The amount of GPU is neither text nor a number.", hint=_HINT)
    if isinstance(written, int) and abs(written) >= 10**LONGEST_TEXT:
        # Python converts at most 4300 digits to text.
        raise InvalidRequest(
            f"A number of more than {LONGEST_TEXT} digits is not a valid amount of GPU.", hint=_HINT
        )
    text = str(written).strip().lower()
    if len(text) > LONGEST_TEXT:  # keeps the parsers below cheap and exact
        raise InvalidRequest(f"{_quoted(text)} is not a valid amount of GPU.", hint=_HINT)
    for sign, spelt in _SIGNS.items():
        text = text.replace(sign, spelt)
    if text in _NOTHING:
        return NO_GPU
    if memory := _MEMORY.fullmatch(text):
        return _memory(memory[1], memory[2], text)
    if gpus := _GPUS.fullmatch(text):
        return _gpus(gpus[1], text)
    raise InvalidRequest(f"{_quoted(text)} is not a valid amount of GPU.", hint=_HINT)


def _memory(number: str, unit: str, text: str) -> Amount:
    """Return an amount of memory, rounded up to whole MiB; `text` is for errors."""
    mib = math.ceil(Decimal(number.replace(",", ".")) * _MIB_PER_UNIT[unit])
    if mib < 1:
        raise InvalidRequest(
            f"{_quoted(text)} is no memory at all.", hint='Choose "without a GPU", or ask for some.'
        )
    if mib > MOST_MEMORY_MIB:
        raise InvalidRequest(
            f"{_quoted(text)} is more memory than any GPU has.", hint="Ask for less."
        )
    return Amount(memory_mib=mib)


def _gpus(number: str, text: str) -> Amount:
    """Return an amount of GPUs from a number, a fraction or percent; `text` is for errors."""
    is_percent = number.endswith("%")
    numerator, _slash, denominator = number.rstrip("%").replace(",", ".").partition("/")
    try:
        value = Fraction(Decimal(numerator.strip())) / Fraction(
            int(denominator or 1) * (100 if is_percent else 1)
        )
    except (InvalidOperation, ValueError, ZeroDivisionError):
        raise InvalidRequest(f"{_quoted(text)} is not a valid amount of GPU.", hint=_HINT) from None
    # Round a third down: a session must not get more than the ledger records.
    milli = math.floor(value * 1000)
    if not denominator and not is_percent and milli != value * 1000:
        raise InvalidRequest(
            f"{_quoted(text)} GPUs are too fine.", hint="Use at most three decimals."
        )
    if milli < 1 and value > 0:
        raise InvalidRequest(f"{_quoted(text)} of a GPU is too little.", hint="Use at least 0.001.")
    if milli > 1000 and milli % 1000:
        raise InvalidRequest(
            f"{_quoted(text)} GPUs are not possible: above one GPU only whole ones are.",
            hint=f"Ask for {milli // 1000} or {milli // 1000 + 1}, or for less than 1.",
        )
    if milli > MOST_GPUS * 1000:
        raise InvalidRequest(
            f"{_quoted(text)} GPUs are more than any machine has.", hint="Ask for fewer."
        )
    return Amount(milli_gpus=milli)


def _quoted(text: str) -> str:
    """Return the input in quotes, cut to 40 characters."""
    return repr(text if len(text) <= LONGEST_TEXT else text[: LONGEST_TEXT - 1] + "…")
