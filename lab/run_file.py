"""A script or notebook of the file browser as a job: its form, and the request made of it."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from runai.hub_service.client import AsyncClient, texts
from runai.hub_service.client.notebook_program import COPY, RUNNER, is_notebook, notebook_command
from runai.hub_service.wire.errors import InvalidRequest, NotFound
from runai.hub_service.wire.printable import printable
from runai.hub_service.wire.schemas import WorkloadDetail
from runai.hub_service.wire.workload_request import (
    SubmitRequest,
    form_help_texts,
    request_fields,
)

FORM: Final = ("gpus", "name", "max_runtime")
"""Fields of a request in the form, in its order; the command line has them all."""


def file_below(root: Path, path: str) -> Path:
    """Return a file by its path below the server's root.

    Raises:
        NotFound: there is no such file.
        InvalidRequest: it lies elsewhere, or a link leads out.
    """
    top = root.resolve()
    with suppress(OSError, ValueError):  # too long; a zero byte
        file = (top / path).resolve()
        if not file.is_relative_to(top):
            raise InvalidRequest(f"{printable(path, 200)} lies outside of the server's folder.")
        if file.is_file():
            return file
    raise NotFound(f"There is no file {printable(path, 200)}.", hint="Save it first.")


def path_below(
    root: Path, path: str, is_there: Callable[[Path], bool], *, hidden: bool = False
) -> str:
    """Return a path below the server's root; "" if it lies elsewhere, is hidden or is missing."""
    with suppress(OSError, ValueError):
        resolved, top = Path(path).resolve(), root.resolve()
        if path and resolved.is_relative_to(top) and is_there(resolved):
            below = resolved.relative_to(top)
            if hidden or not any(part.startswith(".") for part in below.parts):
                return str(below)
    return ""


def form(file: Path, projects: Sequence[str], default: str | None) -> dict[str, Any]:
    """Return the form for a file, as JSON."""
    hints, fields = form_help_texts(), {field.name: field for field in request_fields()}
    takes_parameters = is_notebook(file.name)
    return {
        "fields": [
            {
                "name": name,
                "label": fields[name].label,
                "help": hints[name],
                "example": fields[name].option.example,
                "value": "1" if name == "gpus" else "",
            }
            for name in FORM
        ],
        "arguments": "Parameters" if takes_parameters else "Arguments",
        "arguments_help": "NAME=VALUE for its cell tagged `parameters`."
        if takes_parameters
        else "As in a terminal; no shell reads them.",
        "projects": list(projects),
        "project": default or (projects[0] if len(projects) == 1 else ""),
    }


async def submit_file(
    client: AsyncClient, root: Path, content: Mapping[str, Any]
) -> dict[str, Any]:
    """Submit a file with the values of its form, or say only what would happen.

    Raises:
        RunaiError: the file is not there, a value is not valid, or the service refuses it.
    """
    file = file_below(root, str(content.get("path", "")))
    if content.get("form"):
        caller = await client.whoami()
        return {"error": "", **form(file, caller.projects, caller.default_project)}
    fields = {name: text for name in (*FORM, "project") if (text := _text(content, name))}
    request = file_request(file, fields, _text(content, "arguments"))
    dry_run = content.get("dry_run") is True
    reply = await client.submit(request, dry_run=dry_run)
    first = reply.workloads[0]
    outcome = texts.dry_run_outcome(first, reply.unchecked) if dry_run else "submitted"
    return {
        "error": "",
        "id": first.id,
        "uid": first.uid,
        "lines": [f"{first.id} {outcome}.", *reply.notes],
    }


def file_request(file: Path, fields: Mapping[str, str], arguments: str) -> SubmitRequest:
    """Return the request of a script or notebook, which runs in its folder.

    Raises:
        InvalidRequest: a value is not valid, or the file is no program.
    """
    try:
        words = shlex.split(arguments)
    except ValueError as wrong:
        raise InvalidRequest(
            f"The arguments cannot be read: {str(wrong).lower()}.",
            hint="Check the quotation marks.",
        ) from None
    if is_notebook(file.name):
        command = notebook_command(file.name, words, folder=file.parent)
    elif file.suffix == ".py":
        command = ["python", "-u", file.name, *words]
    else:
        raise InvalidRequest(
            f"{printable(file.name, 200)} is neither a Python script nor a notebook.",
            hint="Submit other programs in a terminal: runai submit -- PROGRAM.",
        )
    from runai.widgets.request import submit_request  # noqa: PLC0415 - IPython takes a second

    return submit_request(command, fields, env={}, workdir=file.parent)


def executed_copy(detail: WorkloadDetail) -> str:
    """Return the path of the executed copy of a job that is a notebook; else ""."""
    command = detail.command or []
    name = detail.reported.parameters.get(COPY) if detail.reported else None
    if RUNNER not in command or not name:
        return ""
    notebook = command[command.index(RUNNER) + 1]
    return str(Path(detail.workdir, notebook).with_name(Path(name).name))


def _text(content: Mapping[str, Any], name: str) -> str:
    """Return what was typed into a field; "" for nothing."""
    return str(content.get(name) or "").strip()
