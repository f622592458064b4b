"""Parsing of a notebook's submit options into a SubmitRequest, or one error sentence.

Scripts, commands and cells are checked here, fields as everywhere by `SubmitRequest`; the service
checks projects, limits and names.
"""

import os
import shlex
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from decimal import Decimal
from numbers import Number
from pathlib import Path

from runai.hub_service.client.notebook_program import DRIVE, is_notebook, program_of
from runai.hub_service.processes.accounts.home_folder import expanded, removed_folder
from runai.hub_service.processes.accounts.submission_environment import environment_note
from runai.hub_service.processes.accounts.umask import umask_note
from runai.hub_service.processes.program_files import named_files, read_code
from runai.hub_service.wire.errors import InvalidRequest
from runai.hub_service.wire.printable import printable
from runai.hub_service.wire.validation import checked
from runai.hub_service.wire.workload_request import SubmitRequest, option_of, request_fields
from runai.widgets.wording import did_you_mean

SOURCE_PLACEHOLDER = "{source}"
"""The cluster replaces it by the path of the file with the job's source."""

Amount = int | float | str | Decimal
Word = str | bytes | os.PathLike[str] | int | float | Decimal
"""A program, one of its arguments, or the value of a variable; numbers become text."""
Program = str | bytes | os.PathLike[str] | Iterable[Word]

_SCRIPTS = (".py", ".sh")
MAX_DISPLAY_LENGTH = 60
_KEYWORDS = {field.name: field.keyword for field in request_fields()}
_ENV_HINT = option_of("env").hint


def fields_of(keywords: Mapping[str, object]) -> dict[str, object]:
    """Return the request's fields of the keywords of `submit`, without those that are None.

    Raises:
        TypeError: there is no such keyword.
    """
    by_keyword = {field.keyword: field for field in request_fields()}
    fields: dict[str, object] = {}
    for keyword, value in keywords.items():
        field = by_keyword.get(keyword)
        if field is None:
            hint = did_you_mean(keyword, list(by_keyword))
            message = f"submit() got an unexpected keyword argument {keyword!r}. {hint}".rstrip()
            raise TypeError(message)
        if field.option.flag_value:
            value = field.option.flag_value if value else None  # noqa: PLW2901
        if value is not None:
            fields[field.name] = field.typed(value)
    return fields


def keyword_request(
    command: Sequence[str],
    *,
    env: Mapping[str, Word] | Iterable[str] | None = None,
    workdir: str | os.PathLike[str] | None = None,
    **keywords: object,
) -> SubmitRequest:
    """Build a request from the keywords of `submit`.

    Raises:
        InvalidRequest: as for `submit_request`.
        TypeError: there is no such keyword.
    """
    fields, variables = fields_of(keywords), environment(env)
    return submit_request(command, fields, env=variables, workdir=workdir)


def submit_request(
    command: Sequence[str],
    fields: Mapping[str, object],
    *,
    env: Mapping[str, str],
    workdir: str | os.PathLike[str] | None = None,
    source: str = "",
) -> SubmitRequest:
    """Check a request's fields and add what is known here: its folder, code and umask.

    Raises:
        InvalidRequest: a value is not valid; the message names it, the hint the fix.
    """
    folder = _checked_directory(workdir)
    values = {
        **fields,
        "command": list(command),
        "env": env,
        "workdir": folder,
        "source": source,
    }
    if "image" not in fields:  # an image has programs of its own
        values |= {"code": read_code(folder, named_files(command)), "umask": umask_note()}
        values |= {} if fields.get("no_environment") else {"environment": environment_note()}
    return checked(SubmitRequest, values, _KEYWORDS)


def program_command(program: Program, args: Word | Iterable[Word] | None = (), /) -> list[str]:
    """Return the command of a script or program; Python and notebooks run with this interpreter.

    A list is used unchanged, but for a notebook; a path, or text that names a file, is that file;
    other text is split into words, and so are arguments given as text.

    Raises:
        InvalidRequest: the script or program does not exist, a word is no text, or a notebook has
            no such parameter.
    """
    rest = _arguments(args)
    if not isinstance(program, str | bytes | os.PathLike):
        command = _words(program, "The program", "Word {} of the command")
        if not command:
            raise InvalidRequest("There is nothing to run.", hint="Name a script or a command.")
        return _of_notebook([*command, *rest])
    text = _word(program, "The program").removeprefix(DRIVE)
    words = [text] if isinstance(program, os.PathLike) or _is_file(text) else _split(text)
    if not words:
        raise InvalidRequest("There is nothing to run.", hint="Name a script or a command.")
    first, rest = words[0], [*words[1:], *rest]
    if is_notebook(first):
        return _of_notebook([first, *rest])
    if _is_file(first):
        return [*_script_command(first), *rest]
    if "/" not in first and Path(first).suffix not in _SCRIPTS and shutil.which(first):
        return [first, *rest]
    raise InvalidRequest(
        f"There is no file {abbreviated(first)} in {_notebook_folder()}.",
        hint=_similar_file_hint(Path(first)) or "Save it first, or name it by its path.",
        code="script_missing",
    )


def _of_notebook(words: list[str]) -> list[str]:
    return program_of(words, folder=_notebook_folder(), python=sys.executable)


def _arguments(args: Word | Iterable[Word] | None) -> list[str]:
    if args is None:
        return []
    if isinstance(args, str | bytes):
        return _split(_word(args, "args"))
    if isinstance(args, os.PathLike | Number):
        return [_word(args, "args")]
    return _words(args, "args", "Argument {}")


def _words(given: object, what: str, each: str) -> list[str]:
    if not isinstance(given, Iterable) or isinstance(given, Mapping | AbstractSet):
        raise InvalidRequest(
            f"{what} is {_type_with_article(given)}.",
            hint="Give a list of words, or text as in a shell.",
        )
    return [_word(word, each.format(number)) for number, word in enumerate(given, 1)]


def _word(value: object, what: str) -> str:
    """Return a word of a command, or the value of a variable, as text.

    Raises:
        InvalidRequest: it is neither text nor a path nor a number.
    """
    if isinstance(value, str | bytes | os.PathLike):
        return os.fsdecode(value)
    if isinstance(value, Number):
        with suppress(ValueError):  # Python writes integers of at most 4300 digits
            return str(value)
    kind = abbreviated(value) if isinstance(value, int) else _type_with_article(value)
    raise InvalidRequest(f"{what} is {kind}.", hint="Give text, a number or a path.")


def _type_with_article(value: object) -> str:
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def abbreviated(value: object) -> str:
    """Return a value for a sentence, at most 60 characters of it."""
    try:
        text = str(value)
    except ValueError:  # Python writes no integers of more than 4300 digits
        return "a number of more than 4300 digits"
    return printable(text, MAX_DISPLAY_LENGTH)


def _is_file(path: str) -> bool:
    try:
        return Path(path).is_file()
    except OSError:  # such as a name that is too long
        return False


def _similar_file_hint(path: Path) -> str:
    """Return a hint at files beside a path with a similar name, "" without one."""
    try:
        return did_you_mean(path.name, [beside.name for beside in path.parent.iterdir()])
    except OSError:  # no folder, or none that may be read
        return ""


def _script_command(script: str) -> list[str]:
    """Return the command that runs a script, by its ending.

    Raises:
        InvalidRequest: it is not executable.
    """
    suffix, executable = Path(script).suffix, os.access(script, os.X_OK)
    if suffix == ".py":
        return [sys.executable, "-u", script]
    if suffix == ".sh" and not executable:
        return ["sh", script]
    if not executable:
        raise InvalidRequest(
            f"{script} is neither a Python script nor executable.", hint=f"Run chmod +x {script}"
        )
    return [str(Path(script).absolute())]


def cell_command(source: str, args: Sequence[str] = ()) -> list[str]:
    """Return the command that runs a cell's source, which the cluster stores as a file.

    Raises:
        InvalidRequest: the cell is empty or not plain Python.
    """
    if not source.strip():
        raise InvalidRequest("The cell has no program.", hint="Write it below %%runai_submit.")
    try:
        compile(source, "<cell>", "exec", dont_inherit=True)
    except (MemoryError, RecursionError, SyntaxError, ValueError) as wrong:
        line = getattr(wrong, "lineno", None)
        what = getattr(wrong, "msg", None) or str(wrong)
        raise InvalidRequest(
            f"The cell is not a Python program: {what}" + (f" in line {line}." if line else "."),
            hint="Magics (%, !) work in notebooks only; leave them out.",
            code="invalid_source",
        ) from None
    return [sys.executable, "-u", SOURCE_PLACEHOLDER, *args]


def environment(given: Mapping[str, Word] | Iterable[str] | None) -> dict[str, str]:
    """Parse variables of a mapping or NAME=VALUE; NAME alone passes the notebook's own value.

    Error messages never contain a value.
    """
    if given is None:
        return {}
    if isinstance(given, Mapping):
        return {
            _checked_variable(name): _word(value, f"env {abbreviated(name)}")
            for name, value in given.items()
        }
    variables = {}
    for text in [given] if isinstance(given, str) else _expect_iterable(given):
        name, equals, value = _checked_variable(text).partition("=")
        if not equals and name not in os.environ:
            label = abbreviated(name)
            raise InvalidRequest(f"{label} is not set here.", hint=f"Give it as {label}=VALUE.")
        variables[name] = value if equals else os.environ[name]
    return variables


def _expect_iterable(given: object) -> Iterable[object]:
    if not isinstance(given, Iterable):
        raise InvalidRequest(f"env is {_type_with_article(given)}.", hint=_ENV_HINT)
    return given


def _checked_variable(given: object) -> str:
    """Return the text of a variable, if it is one."""
    if not isinstance(given, str):
        raise InvalidRequest(f"A variable is {_type_with_article(given)}.", hint=_ENV_HINT)
    try:
        os.fsencode(given)
    except UnicodeEncodeError:
        raise InvalidRequest("A variable is no text.", hint=_ENV_HINT) from None
    return given


def with_module_path(env: Mapping[str, str], workdir: str | None) -> dict[str, str]:
    """Add the working directory to PYTHONPATH: a cell imports modules beside its notebook."""
    if "PYTHONPATH" in env:
        return dict(env)
    beside, inherited = _checked_directory(workdir), os.environ.get("PYTHONPATH")
    return {**env, "PYTHONPATH": os.pathsep.join(filter(None, [beside, inherited]))}


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as wrong:
        raise InvalidRequest(
            f"The command cannot be read: {str(wrong).lower()}.", hint="Check its quotation marks."
        ) from None


def _checked_directory(workdir: str | os.PathLike[str] | None) -> str:
    """Return the absolute path of the working directory.

    Raises:
        InvalidRequest: it does not exist.
    """
    try:
        path = expanded(workdir or _notebook_folder()).absolute()
        if path.is_dir():
            return str(path)
    except FileNotFoundError:  # relative to a folder that has gone
        _notebook_folder()
        raise
    except (OSError, TypeError):  # too long; no path at all
        path = Path(abbreviated(workdir))
    message = f"There is no directory {abbreviated(path)}."
    raise InvalidRequest(message, hint="Name one that exists.")


def _notebook_folder() -> Path:
    """Return the notebook's folder, which may have been removed under its kernel."""
    if removed := removed_folder():
        raise InvalidRequest(
            f"{printable(removed, 500)} was removed while this kernel runs in it.",
            hint="Go to one that exists: %cd FOLDER.",
        )
    return Path.cwd()
