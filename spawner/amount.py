"""Parser of amounts of GPU as people write them.

Pure: text or a number from a form or the REST API becomes an `Amount` or one error sentence.
"""

import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from runai.hub_service.wire.amounts import MAX_TEXT_LENGTH, gpus, size_mib
from runai.hub_service.wire.errors import InvalidRequest

_NOTHING: Final = frozenset({"none", "no", "no gpu", "without", "without a gpu", "cpu"})
_HAS_UNIT: Final = re.compile(r"[mgt](i?b?)\s*$")


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
    text = str(written).strip().lower() if isinstance(written, str) else ""
    if text in _NOTHING:
        return NO_GPU
    has_unit = _HAS_UNIT.search(text[:MAX_TEXT_LENGTH]) is not None
    try:
        if has_unit:
            return Amount(memory_mib=size_mib(text))
        milli = int(gpus(written) * 1000)
    except ValueError as wrong:
        requirement = f"{str(wrong)[0].upper()}{str(wrong)[1:]}"
        raise InvalidRequest(
            f"{_quoted(written)} is not a valid amount of GPU.",
            hint=f"{requirement}{'' if has_unit else ', or memory such as 8 GiB'}.",
        ) from None
    if milli > 1000 and milli % 1000:
        raise InvalidRequest(
            f"{_quoted(written)} GPUs are not possible: above one GPU only whole ones are.",
            hint=f"Ask for {milli // 1000} or {milli // 1000 + 1}, or for less than 1.",
        )
    return Amount(milli_gpus=milli)


def _quoted(written: object) -> str:
    """Return the input in quotes, cut to 40 characters."""
    if isinstance(written, int) and abs(written) >= 10**MAX_TEXT_LENGTH:
        return f"A number of more than {MAX_TEXT_LENGTH} digits"
    text = str(written)
    return repr(text if len(text) <= MAX_TEXT_LENGTH else text[: MAX_TEXT_LENGTH - 1] + "…")
