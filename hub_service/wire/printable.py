"""Text of other people, made safe to show on one line, in a log or on a terminal.

What moves a cursor, ends a line, turns the direction of writing or cannot be encoded at all is
shown as its escape instead. Pure; used wherever text that somebody else chose leaves the platform.
"""

import json
import re

MOST_CHARACTERS = 1000
_COLOUR = re.compile(r"(\x1b\[[0-9;:]{0,40}m)")
"""The one kind of escape sequence that changes nothing but looks."""
_OF_LINES = frozenset("\t\r")


def printable(text: str, most: int = MOST_CHARACTERS) -> str:
    r"""Return a text on one line and of bounded length, odd letters as escapes.

    >>> print(printable("a\nb\x1b[2J\u202e\udcff"))
    a\nb\x1b[2J\u202e\udcff
    >>> printable("x" * 9, most=4)
    'xxx…'
    """
    if len(text) > most:
        text = f"{text[: most - 1]}…"
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else _escaped(letter) for letter in text)


def for_terminal(line: str) -> str:
    r"""Return a line of output as a terminal may have it: its colours, and nothing else that acts.

    Titles, the clipboard, links and the cursor are not an output's to set.

    >>> for_terminal("\x1b[31mred\x1b[0m \x1b]0;title\x07")
    '\x1b[31mred\x1b[0m \\x1b]0;title\\x07'
    """
    return "".join(
        part if _COLOUR.fullmatch(part) else _without_acts(part) for part in _COLOUR.split(line)
    )


def json_for_terminal(value: object, *, indent: int | None = None) -> str:
    r"""Return it as JSON that means the same and that a terminal may have.

    JSON's own escapes leave out the second half of the controls, and what turns lines around.

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


def _without_acts(text: str) -> str:
    return "".join(
        letter if letter.isprintable() or letter in _OF_LINES else _escaped(letter)
        for letter in text
    )


def _escaped(letter: str) -> str:
    return letter.encode("unicode_escape").decode("ascii")
