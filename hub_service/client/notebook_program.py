"""A notebook as a program: its parameters, and the command that runs it as a job.

One mapping for the command line, magics and JupyterLab; `runai.widgets.notebook_run` reads the
values again. Nothing of the notebook is executed here.
"""

import ast
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict

from runai.hub_service.wire.errors import InvalidRequest
from runai.hub_service.wire.printable import printable

RUNNER: Final = "runai.widgets.notebook_run"
COPY: Final = "notebook copy"
"""Reported parameter with the name of the executed copy."""
PARAMETERS: Final = "parameters"
"""Tag of the cell that assigns each parameter its default, as papermill has it."""

DRIVE: Final = "RTC:"
"""JupyterLab's prefix of files that several people edit at once; no part of the path."""
_MAGIC: Final = re.compile(r"^([ \t]*)[%!].*", re.MULTILINE)
_INTEGER: Final = re.compile(r"[-+]?[0-9]+(?:_[0-9]+)*")
_OTHER_BASE: Final = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NOT_FINITE: Final = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_WORDS: Final = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}


class _Part(BaseModel):
    """A part of a notebook's JSON: the fields that are read here, and any others."""

    model_config = ConfigDict(strict=True)


class _CellMetadata(_Part):
    tags: list[str] = []


class _Cell(_Part):
    cell_type: str
    source: str | list[str] = ""
    metadata: _CellMetadata = _CellMetadata()


class _Named(_Part):
    name: str = ""
    language: str = ""


class _Metadata(_Part):
    kernelspec: _Named = _Named()
    language_info: _Named = _Named()


class _Notebook(_Part):
    nbformat: int
    cells: list[_Cell] = []
    metadata: _Metadata = _Metadata()


def is_notebook(program: str) -> bool:
    """Return True if a program is a notebook, by its ending."""
    return program.endswith(".ipynb")


def notebook_command(
    path: str, settings: Sequence[str] = (), *, folder: Path | None, python: str = "python"
) -> list[str]:
    """Return the command that runs a notebook with settings, each NAME=VALUE.

    `folder` is the job's working directory; None: it is not known here, and nothing is checked.

    Raises:
        InvalidRequest: there is no such notebook, or it has no such parameter.
    """
    path = path.removeprefix(DRIVE)
    if folder is not None:
        values_of(settings, read_notebook(folder / path), path)
    return [python, "-m", RUNNER, path, *(word for each in settings for word in ("--set", each))]


def program_of(program: Sequence[str], *, folder: Path | None, python: str = "python") -> list[str]:
    """Return a program's command: a notebook's as `notebook_command` does, any other unchanged.

    Raises:
        InvalidRequest: as for `notebook_command`, or a notebook has another argument than `--set`.
    """
    first, *arguments = program
    if not is_notebook(first):
        return [*program]
    return notebook_command(first, settings_of(arguments), folder=folder, python=python)


def settings_of(arguments: Iterable[str]) -> list[str]:
    """Return the settings in a notebook's arguments, which are `--set NAME=VALUE` alone.

    Raises:
        InvalidRequest: there is another argument.
    """
    settings, words = [], iter(arguments)
    for word in words:
        option, equals, value = word.partition("=")
        if option != "--set":
            raise InvalidRequest(
                f"A notebook takes no argument {printable(word, 60)}.",
                hint="Set its parameters by --set NAME=VALUE.",
            )
        settings.append(value if equals else next(words, ""))
    return settings


def read_notebook(path: Path) -> dict[str, Any]:
    """Return a notebook's JSON.

    Raises:
        InvalidRequest: it is missing, or no notebook.
    """
    try:
        notebook: dict[str, Any] = json.loads(path.read_bytes())
        _Notebook.model_validate(notebook)
    except FileNotFoundError:
        raise InvalidRequest(
            f"There is no notebook {path.name} in {path.parent}.",
            hint=_near(path.name, _notebooks_in(path.parent))
            or "Save it first, or check its name.",
            code="script_missing",
        ) from None
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError):  # no JSON, or of another shape
        raise InvalidRequest(
            f"{path} is no notebook.", hint="Open and save it in JupyterLab."
        ) from None
    return notebook


def parameters_of(notebook: Mapping[str, Any], name: str) -> dict[str, str] | None:
    """Return the source of each parameter's default; None if no cell is tagged `parameters`.

    Raises:
        InvalidRequest: that cell is not plain Python.
    """
    cell = next((c for c in notebook.get("cells", ()) if PARAMETERS in tags_of(c)), None)
    if cell is None:
        return None
    source = _MAGIC.sub(r"\1pass", "".join(cell.get("source", "")))
    try:
        return dict(_assignments(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise InvalidRequest(
            f"The cell of {name} that is tagged {PARAMETERS} is not plain Python.",
            hint="Put the parameters into a cell of their own: rate = 0.1",
        ) from None


def _assignments(module: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield each assigned name with the source of its value."""
    for statement in module.body:
        match statement:
            case ast.Assign(targets=targets, value=value):
                yield from ((name, ast.unparse(value)) for name in _names(*targets))
            case ast.AnnAssign(target=target, value=default):
                source = ast.unparse(default) if default else ""
                yield from ((name, source) for name in _names(target))


def _names(*targets: ast.expr) -> list[str]:
    """Return the names that an assignment binds."""
    nodes = [node for target in targets for node in ast.walk(target)]
    return [n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]


def tags_of(cell: Mapping[str, Any]) -> Sequence[str]:
    """Return a cell's tags."""
    return cell.get("metadata", {}).get("tags") or ()


def language_of(notebook: Mapping[str, Any]) -> str:
    """Return the language that a notebook names, in lower case; "python" if it names none."""
    metadata = notebook.get("metadata", {})
    language = metadata.get("kernelspec", {}).get("language")
    return str(language or metadata.get("language_info", {}).get("name") or "python").lower()


def values_of(settings: Iterable[str], notebook: Mapping[str, Any], name: str) -> dict[str, object]:
    """Return the value of each set parameter of the notebook `name`.

    Raises:
        InvalidRequest: the notebook has no such parameter, or a value cannot be read.
    """
    pairs = [setting.partition("=") for setting in settings]
    if not pairs:
        return {}
    if (language := language_of(notebook)) != "python":
        raise InvalidRequest(
            f"{name} is a notebook in {language}, and --set needs one in Python.",
            hint="Leave --set out.",
        )
    if (known := parameters_of(notebook, name)) is None:
        raise InvalidRequest(
            f"{name} takes no --set: none of its cells is tagged {PARAMETERS}.",
            hint="In JupyterLab select the cell with the defaults, open the property inspector (the"
            f" gears at the right), and add the tag {PARAMETERS}.",
        )
    for parameter, equals, _ in pairs:
        if not equals:
            raise InvalidRequest(f"--set {printable(parameter, 60)}: write NAME=VALUE.")
        if parameter not in known:
            names = ", ".join(known) or "none"
            raise InvalidRequest(
                f"{name} has no parameter {printable(parameter, 60)}.",
                hint=_near(parameter, known) or f"It has: {printable(names, 500)}.",
            )
    return {parameter: _value(parameter, text) for parameter, _, text in pairs}


def _value(parameter: str, text: str) -> object:
    try:
        return scalar(text)
    except (ValueError, RecursionError):
        raise InvalidRequest(
            f"--set {parameter}={printable(text, 60)} cannot be read.",
            hint="""Write text that begins with a quotation mark or a bracket as '"…"'.""",
        ) from None


def scalar(text: str) -> object:  # noqa: PLR0911 - one for each kind
    """Read a YAML scalar (1.2, core schema), or a list or mapping in JSON.

    >>> [scalar(each) for each in ("0.1", "1e-3", "7", "true", "null", "no", "'7'", "a b", "[1]")]
    [0.1, 0.001, 7, True, None, 'no', '7', 'a b', [1]]

    Raises:
        ValueError: a quotation or bracket does not end, or an integer has over 4300 digits.
    """
    text = text.strip()
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    if _OTHER_BASE.fullmatch(text):
        return int(text, 0)
    if _FLOAT.fullmatch(text):
        return float(text)
    if _NOT_FINITE.fullmatch(text):
        return float(text.replace(".", ""))
    if text.startswith("'"):
        if not re.fullmatch(r"'(?:[^']|'')*'", text):
            raise ValueError(text)
        return text[1:-1].replace("''", "'")
    if text.startswith(('"', "[", "{")):
        return json.loads(text, strict=False, parse_constant=_refuse)
    return text


def _refuse(constant: str) -> object:
    raise ValueError(constant)


def python_literal(value: object) -> str:
    r"""Return the Python source of a value that `scalar` read.

    >>> python_literal(True), python_literal("it's"), python_literal(math.inf)
    ('True', '"it\'s"', "float('inf')")
    """
    is_literal = not isinstance(value, float) or math.isfinite(value)
    return repr(value) if is_literal else f"float('{value}')"


def _near(wrong: str, known: Iterable[str]) -> str:
    """Return a suggestion for a misspelled name; "" without a close one."""
    near = get_close_matches(wrong, list(known), n=1)
    return f"Did you mean {near[0]}?" if near else ""


def _notebooks_in(folder: Path) -> list[str]:
    try:
        return [path.name for path in folder.iterdir() if is_notebook(path.name)]
    except OSError:  # no folder, or none that may be read
        return []
