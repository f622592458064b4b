"""Escaping of untrusted text for one line, a log or a terminal.

Characters that move the cursor, end a line, change the writing direction or cannot be encoded
become escapes. Pure functions, for all text from users that leaves the platform.
"""

import json
import re

MOST_CHARACTERS = 1000
_COLOUR = re.compile(r"(\x1b\[[0-9;:]{0,40}m)")
"""SGR, the only escape sequence that changes nothing but the appearance."""
_ALLOWED_WHITESPACE = frozenset("\t\r")


def printable(text: str, most: int = MOST_CHARACTERS) -> str:
    r"""Return the text on one line and of bounded length, unprintable characters as escapes.

    >>> print(printable("a\nb\x1b[2J\u202e\udcff"))
    a\nb\x1b[2J\u202e\udcff
    >>> printable("x" * 9, most=4)
    'xxx…'
    """
    if len(text) > most:
        text = f"{text[: most - 1]}…"
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else _escape(letter) for letter in text)


def for_terminal(line: str) -> str:
    r"""Escape all control sequences in a line of output except colours.

    Workload output must not set the terminal's title, clipboard, links or cursor.

    >>> for_terminal("\x1b[31mred\x1b[0m \x1b]0;title\x07")
    '\x1b[31mred\x1b[0m \\x1b]0;title\\x07'
    """
    return "".join(
        part if _COLOUR.fullmatch(part) else _escape_controls(part) for part in _COLOUR.split(line)
    )


def json_for_terminal(value: object, *, indent: int | None = None) -> str:
    r"""Return equivalent JSON that is safe on a terminal.

    `json.dumps` escapes neither C1 controls nor changes of the writing direction.

    >>> print(json_for_terminal("ü\n\x9b2J\u202e\U000e0001\udcff"))
    "ü\n\u009b2J\u202e\udb40\udc01\udcff"
    """
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() or letter == "\n" else json.dumps(letter)[1:-1]
        for letter in text
    )


def _escape_controls(text: str) -> str:
    return "".join(
        letter if letter.isprintable() or letter in _ALLOWED_WHITESPACE else _escape(letter)
        for letter in text
    )


def _escape(letter: str) -> str:
    return letter.encode("unicode_escape").decode("ascii")
