"""The name of a user's home on one machine, for sessions and jobs alike."""

import hashlib
import re
from typing import Final
from urllib.parse import quote

_PLAIN: Final = re.compile(r"[a-z0-9]([a-z0-9._@-]{0,61}[a-z0-9])?")
_LONGEST: Final = 200  # bytes; file systems take 255
_DIGEST_DIGITS: Final = 32


def home_name(user: str) -> str:
    """Return the name of a user's home: one path component, a different one for each user.

    Plain names are unchanged, others percent-quoted; a long one is cut and ends in a digest.

    >>> home_name("ana@example.org"), home_name("Ana Müller"), home_name("..")
    ('ana@example.org', 'Ana M%C3%BCller', '%2E%2E')
    """
    if _PLAIN.fullmatch(user):
        return user
    quoted = quote(user, safe=" ").replace(".", "%2E")
    if quoted[:1] in {"-", "~"}:  # an option to programs, another home to shells
        quoted = f"%{ord(quoted[0]):02X}{quoted[1:]}"
    if len(quoted) > _LONGEST:
        digest = hashlib.sha256(user.encode()).hexdigest()[:_DIGEST_DIGITS]
        # Quoting makes no "%%": the result differs from every name that was not cut.
        return f"{quoted[: _LONGEST - _DIGEST_DIGITS - 2]}%%{digest}"
    return quoted or "%"
