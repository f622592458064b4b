"""Digests of the files that a command names, the commit of its folder, and its Python.

Standard library only: the supervisor's program loads it without its package (`code_note.py`).
"""

import contextlib
import os
import re
import shlex
import stat
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, Final

ENDINGS: Final = (
    *(".py", ".sh", ".bash", ".ipynb", ".r", ".jl", ".lua", ".pl"),
    *(".yaml", ".yml", ".toml", ".json", ".ini", ".cfg", ".conf"),
)
"""Endings of programs and configurations; no other file is read."""
MAX_FILES: Final = 3
MAX_BYTES: Final = 16 * 2**20

MISSING, TOO_LARGE, IRREGULAR, UNREADABLE = "gone", "over 16 MiB", "no file", "not readable"
"""Stand in the place of a digest."""

_SHELLS = {"ash", "bash", "dash", "fish", "ksh", "sh", "zsh"}
_SHELL_TEXT = re.compile(r"-[a-z]*c")
_PYTHON = re.compile(r"(?:python|pypy)[0-9.]*")
_OPTION = re.compile(r"-{0,2}[A-Za-z][\w.-]*=")
_NAME = re.compile(r"[^\x00-\x1f\x7f]{1,4096}")
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_MAX_LINKS = 5
"""Symbolic references to follow from HEAD; git follows as many."""
_MAX_TEXT_BYTES = 4096


def named_files(command: Sequence[str]) -> list[str]:
    """Return the first programs and configurations that a command names, by their endings."""
    found = dict.fromkeys(name for word in _words(command) if (name := _file_of(word)))
    return list(found)[:MAX_FILES]


def _words(command: Sequence[str]) -> Iterator[str]:
    """Yield a command's words, and of a shell's text its own."""
    in_shell = False
    for before, word in zip(("", *command), command, strict=False):
        if in_shell and _SHELL_TEXT.fullmatch(before):
            yield from _words_of_text(word)
        else:
            yield word
        in_shell = in_shell or os.path.basename(word) in _SHELLS  # noqa: PTH119


def _words_of_text(text: str) -> Iterator[str]:
    """Yield the words of a shell command that may be files it reads."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    before = ""
    with contextlib.suppress(ValueError):  # no text of a shell
        for word in lexer:
            if not before.startswith(">"):  # else output
                yield word
            before = word


def _file_of(word: str) -> str:
    """Return the file that a word names: of `--config=a.yaml` a.yaml; "" for any other word."""
    option = _OPTION.match(word)
    name = word[option.end() :] if option else word
    stem, ending = os.path.splitext(name)  # noqa: PTH122
    is_named = ending.lower() in ENDINGS and "://" not in stem and _NAME.fullmatch(name)
    return name if is_named else ""


def read_code(folder: str, names: Sequence[str]) -> dict[str, Any]:
    """Return the digest of each file, or why it has none, and the commit of their folder."""
    files = {name: _digest(os.path.join(folder, name)) for name in names}  # noqa: PTH118
    return {"files": files, "commit": _commit(folder)}


def python_of(program: str, folder: str, path: str) -> str:
    """Return the Python that runs a program: itself, or the one of its first line; "" for none."""
    places = [folder] if "/" in program else path.split(os.pathsep)
    tried = [os.path.join(folder, place, program) for place in places]  # noqa: PTH118
    found = next((p for p in tried if os.path.isfile(p) and os.access(p, os.X_OK)), "")  # noqa: PTH113
    if not _PYTHON.fullmatch(os.path.basename(found)):  # noqa: PTH119
        with contextlib.suppress(OSError, ValueError, IrregularError), _open(found) as file:
            head = file.read(_MAX_TEXT_BYTES).split(b"\n")[0].decode()
            words = head[2:].split() if head.startswith("#!") else []
            if words and words[0].endswith("/env") and _PYTHON.fullmatch(words[-1]):
                return python_of(words[-1], folder, path)
            found = next(iter(words), "")
    is_python = _PYTHON.fullmatch(os.path.basename(found)) and _NAME.fullmatch(found)  # noqa: PTH119
    return found if is_python else ""


def _digest(path: str) -> str:
    """Return the SHA-256 of a file; a word in capitals says why there is none."""
    import hashlib  # noqa: PLC0415  megabytes, which the other supervisors do without

    digest, left = hashlib.sha256(), MAX_BYTES
    try:
        with _open(path) as file:
            while piece := file.read(2**20):
                digest.update(piece)
                left -= len(piece)
                if left < 0:
                    return TOO_LARGE
    except (FileNotFoundError, NotADirectoryError):
        return MISSING
    except (IrregularError, IsADirectoryError):
        return IRREGULAR
    except (OSError, ValueError):
        return UNREADABLE
    return digest.hexdigest()


class IrregularError(Exception):
    """Error: a path is no regular file."""


def _open(path: str) -> BinaryIO:
    """Open a regular file; a FIFO's writer does not even notice.

    Raises:
        IrregularError: it is something else.
        OSError: it cannot be read.
    """
    if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116
        raise IrregularError
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    file = os.fdopen(fd, "rb")
    if not stat.S_ISREG(os.fstat(fd).st_mode):  # replaced meanwhile
        file.close()
        raise IrregularError
    return file


# -- git -----------------------------------------------------------------------------------------


def _commit(folder: str) -> str:
    """Return the commit of the git repository around a folder; "" if there is none."""
    place, last = os.path.realpath(folder), ""
    with contextlib.suppress(OSError, ValueError, IrregularError):
        while place != last:
            if os.path.lexists(git := f"{place}/.git"):
                return _head(git)
            place, last = os.path.dirname(place), place  # noqa: PTH120
    return ""


def _head(git: str) -> str:
    """Return the commit of a Git directory's HEAD, without a call of git; "" if it is unknown."""
    if os.path.isfile(git):  # noqa: PTH113  of a worktree or submodule
        where = _text(git).removeprefix("gitdir:").strip()
        git = os.path.join(os.path.dirname(git), where)  # noqa: PTH118, PTH120
    common = git
    with contextlib.suppress(FileNotFoundError):
        common = os.path.join(git, _text(f"{git}/commondir"))  # noqa: PTH118
    head = _text(f"{git}/HEAD")
    for _ in range(_MAX_LINKS):
        if _COMMIT.fullmatch(head):
            return head
        name = head.removeprefix("ref: ")
        if not name.startswith("refs/") or ".." in name:
            break
        head = (
            _loose_ref(f"{git}/{name}")
            or _loose_ref(f"{common}/{name}")
            or _packed_ref(common, name)
        )
    return ""


def _loose_ref(path: str) -> str:
    """Return the commit in a reference's own file; "" without one."""
    try:
        return _text(path)
    except (FileNotFoundError, NotADirectoryError, IrregularError):
        return ""


def _packed_ref(common: str, name: str) -> str:
    """Return a reference's commit from `packed-refs`; "" if it is not there."""
    with _open(f"{common}/packed-refs") as file:
        for line in file.read(MAX_BYTES).splitlines():
            commit, _, packed = line.partition(b" ")
            if packed == name.encode():
                return commit.decode()
    return ""


def _text(path: str) -> str:
    with _open(path) as file:
        return file.read(_MAX_TEXT_BYTES).decode().strip()
