"""One run of a notebook: its cells, its copy, and what the platform and the log show of it."""

import contextlib
import json
import os
import sys
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from runai.hub_service.client.notebook_program import (
    COPY,
    PARAMETERS,
    python_literal,
    read_notebook,
    tags_of,
    values_of,
)
from runai.hub_service.processes.path_faults import account_name, path_fault
from runai.hub_service.wire.errors import InvalidRequest
from runai.reporter.pushing import PROGRESS_FILE, Report, ReportType, push
from runai.widgets.notebook_run.executed_copy import NotebookCopy

INJECTED = "injected-parameters"
"""Tag of the cell with the values that were set, as papermill has it."""
_SKIPPED = "skip-execution"  # nbclient's tag
_OUR_STARTS = "notebook starts"


@dataclass
class NotebookRun:
    """A notebook that runs: its content changes as cells run, `save` writes it."""

    path: Path
    notebook: dict[str, Any]
    copy: NotebookCopy
    starts: int
    """Starts of this job so far, this one included."""
    cells: int
    """Cells to run, without the one of the parameters that were set."""
    position: str = ""
    """The current cell, as `cell 3 of 5`."""
    write_fault: str = ""
    """Why the copy is not up to date; "" if it is."""
    unnoted_end: str = "failed"
    """The state of a run whose end nothing else notes."""
    is_ended: bool = False
    _is_within_line: bool = False

    @classmethod
    def begin(cls, path: Path, settings: Sequence[str]) -> Self:
        """Write the copy of a notebook with its parameters set, and without outputs.

        Raises:
            InvalidRequest: the notebook or a parameter is missing, or the copy cannot be written.
        """
        notebook = _current_format(read_notebook(path))
        _set_parameters(notebook, values_of(settings, notebook, path.name))
        _clear(notebook)
        name, starts = _earlier_start()
        own, index = os.environ.get("RUNAI_WORKLOAD", ""), os.environ.get("RUNAI_ARRAY_INDEX", "")
        array = own.removesuffix(f"-{index}") if index else ""
        facts = {"notebook": path.name, "workload": own, "array": array, "starts": starts}
        facts["state"] = "running"
        if starts > 1:
            notebook["cells"].insert(0, _text_cell(notebook, f"*started again ({starts})*"))
        notebook["metadata"]["runai"] = facts
        cells = sum(is_numbered(cell) for cell in notebook["cells"])
        try:
            copy = NotebookCopy.again(path, name, array=array, workload=own) if name else None
            is_claimed = copy is None
            if copy is None:
                copy = NotebookCopy.claim(path, index=index, array=array, workload=own)
            run = cls(path, notebook, copy, starts, cells)
            try:
                copy.write(notebook)
            except OSError:
                if is_claimed:  # a next start takes this number again
                    copy.path.unlink(missing_ok=True)
                raise
        except OSError as error:
            raise InvalidRequest(
                f"The executed copy of {path.name} cannot be written: {_sentence(path, error)}."
            ) from None
        texts = {COPY: copy.path.name, _OUR_STARTS: str(starts)}
        run._report(texts, {"finished_cells": 0, "cells": cells})
        return run

    def enter(self, finished: int) -> None:
        """Note that the cell after so many finished ones begins."""
        self.position = f"cell {min(finished + 1, self.cells)} of {self.cells}"
        self.notebook["metadata"]["runai"]["progress"] = self.position
        self._report({}, {"finished_cells": finished, "cells": self.cells})

    def end(self, state: str) -> None:
        """Note how the run ended, and write the copy for the last time."""
        self.is_ended = True
        self.notebook["metadata"]["runai"]["state"] = state
        self.save()

    def save(self) -> None:
        """Write the copy; a failure is printed once, and the run goes on."""
        try:
            self.copy.write(self.notebook)
        except OSError as error:
            fault = _sentence(self.path, error)
            if not self.write_fault:
                self.say(f"{self.copy.path.name} cannot be written now, the run goes on: {fault}.")
            self.write_fault = fault
        else:
            if self.write_fault:
                self.say(f"{self.copy.path.name} is written again.")
            self.write_fault = ""

    def say(self, line: str) -> None:
        """Print a line of our own to the job's log."""
        self.log("\n" * self._is_within_line + f"{line}\n")

    def log(self, text: str, *, is_error: bool = False) -> None:
        """Print a cell's text to the job's log."""
        stream = sys.stderr if is_error else sys.stdout
        with contextlib.suppress(OSError):  # the log's disk is full, or nobody reads it
            stream.write(text)
            stream.flush()
        self._is_within_line = bool(text) and not text.endswith("\n")

    def _report(self, texts: Mapping[str, str], numbers: Mapping[str, float]) -> None:
        if os.environ.get("RUNAI_CHECKPOINT_DIR"):
            reports = [Report(name, text, ReportType.parameter) for name, text in texts.items()]
            push.all(
                [*reports, *(Report(n, value, ReportType.metric) for n, value in numbers.items())]
            )


def is_numbered(cell: Mapping[str, Any]) -> bool:
    """Return True if a cell counts: it has code that runs, and it is the notebook's own."""
    runs = cell["cell_type"] == "code" and cell["source"].strip()
    return bool(runs) and not {INJECTED, _SKIPPED} & {*tags_of(cell)}


def _current_format(notebook: dict[str, Any]) -> dict[str, Any]:
    """Return a notebook in format 4, without the import that this needs for older ones alone."""
    if notebook["nbformat"] >= 4:
        return notebook
    import nbformat  # noqa: PLC0415 - two seconds on a busy machine

    text = json.dumps(notebook)
    converted: dict[str, Any] = nbformat.reads(text, as_version=4)  # type: ignore[no-untyped-call]
    return converted


def _clear(notebook: dict[str, Any]) -> None:
    """Remove the outputs of an earlier run, and join lines of sources as a kernel wants them."""
    notebook.setdefault("metadata", {}).pop("widgets", None)
    notebook.setdefault("cells", [])
    for cell in notebook["cells"]:
        cell["source"] = "".join(cell.get("source", ""))
        cell.setdefault("metadata", {}).pop("execution", None)
        if cell["cell_type"] == "code":
            cell["outputs"], cell["execution_count"] = [], None


def _set_parameters(notebook: dict[str, Any], values: Mapping[str, object]) -> None:
    """Put a cell with the values after the one with the defaults; it replaces one of before."""
    if not values:
        return
    cells = [cell for cell in notebook["cells"] if INJECTED not in tags_of(cell)]
    after = next(at for at, cell in enumerate(cells, 1) if PARAMETERS in tags_of(cell))
    lines = ["# Parameters", *(f"{n} = {python_literal(value)}" for n, value in values.items())]
    cell = _text_cell(notebook, "\n".join(lines)) | {
        "cell_type": "code",
        "metadata": {"tags": [INJECTED]},
        "outputs": [],
        "execution_count": None,
    }
    notebook["cells"] = [*cells[:after], cell, *cells[after:]]


def _text_cell(notebook: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Return a Markdown cell; cells have an identity since format 4.5."""
    has_id = (notebook["nbformat"], notebook.get("nbformat_minor", 0)) >= (4, 5)
    own = {"id": uuid.uuid4().hex[:8]} if has_id else {}
    return {"cell_type": "markdown", "metadata": {}, "source": source, **own}


def _earlier_start() -> tuple[str, int]:
    """Return the name of the copy of this job's earlier start, if any, and the number of this one.

    They stand beside the reported progress, which is no checkpoint: the platform still warns of a
    pause that saved nothing.
    """
    if os.environ.get("RUNAI_RESUMED") != "1":  # a file may be of an earlier job of the name
        return "", 1
    name, starts = "", 1
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
        file = Path(os.environ.get("RUNAI_CHECKPOINT_DIR", ""), PROGRESS_FILE)
        texts = json.loads(file.read_bytes())["parameters"]
        name, starts = Path(texts[COPY]).name, int(texts[_OUR_STARTS])
    return name, starts + 1


def _sentence(path: Path, error: OSError) -> str:
    """Return why a file beside a notebook cannot be written."""
    folder, user = str(path.parent.absolute()), account_name(os.geteuid())
    return path_fault(folder, error.errno or 0, user, os.environ.get("HOME", "")).text
