"""The executed copy of a notebook: its name, and its file."""

import contextlib
import json
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class NotebookCopy:
    """The file of one run, replaced whole at each write."""

    path: Path
    mode: int
    """Permissions of a new file; those of an existing one stay."""

    @classmethod
    def claim(
        cls, notebook: Path, *, index: str = "", array: str = "", workload: str = ""
    ) -> "NotebookCopy":
        """Create the copy with the next free number; it has the names of its job alone.

        The jobs of an `array` share the number; `index` is the job's own within it.

        Raises:
            OSError: the notebook's folder cannot be written.
        """
        copies = _copies_of(notebook)
        for number in count(1):
            copies_of_number = copies.get(number, {})
            if "" in copies_of_number or (
                copies_of_number and not (index and _is_of(array, notebook, copies_of_number))
            ):
                continue
            name = f"{notebook.stem}.run-{number}{index and '-'}{index}{notebook.suffix}"
            with contextlib.suppress(FileExistsError):  # another job was first
                copy = cls(notebook.with_name(name), _mode_of(notebook))
                copy._create(array, workload)
                others = _copies_of(notebook).get(number, {}) if index else {}
                others.pop(index, None)
                if not others or _is_of(array, notebook, others):
                    return copy
                copy.path.unlink(missing_ok=True)  # another array took the number just now
        raise AssertionError

    @classmethod
    def again(
        cls, notebook: Path, name: str, *, array: str = "", workload: str = ""
    ) -> "NotebookCopy | None":
        """Return the copy of an earlier start of this job; None: the file is another's now.

        Raises:
            OSError: it is missing, and the notebook's folder cannot be written.
        """
        copy = cls(notebook.with_name(name), _mode_of(notebook))
        try:
            copy._create(array, workload)
        except FileExistsError:
            return copy if _has_name(copy.path, "workload", workload) else None
        return copy

    def _create(self, array: str, workload: str) -> None:
        """Create the file, with the names of its job: the number is theirs from now on."""
        facts = {"metadata": {"runai": {"array": array, "workload": workload}}}
        descriptor = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, self.mode)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(json.dumps(facts).encode())
        except OSError:
            self.path.unlink(missing_ok=True)
            raise

    def write(self, notebook: Mapping[str, Any]) -> None:
        """Replace the file by a notebook; a reader sees either version whole.

        Raises:
            OSError: there is no room, or no right to write.
        """
        text = json.dumps(notebook, ensure_ascii=False, indent=1, sort_keys=True)
        partial = self.path.with_name(f".{self.path.name}.part")
        partial.unlink(missing_ok=True)  # of a killed start
        try:
            descriptor = os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, self.mode)
            with os.fdopen(descriptor, "wb") as file:
                with contextlib.suppress(FileNotFoundError, PermissionError):
                    os.fchmod(file.fileno(), stat.S_IMODE(self.path.stat().st_mode))
                file.write(f"{text}\n".encode(errors="replace"))
            partial.replace(self.path)
        except OSError:
            partial.unlink(missing_ok=True)
            raise


def _mode_of(notebook: Path) -> int:
    """Return the permissions of a copy: the notebook's, which its owner may write."""
    return stat.S_IMODE(notebook.stat().st_mode) & 0o666 | stat.S_IRUSR | stat.S_IWUSR


def _copies_of(notebook: Path) -> dict[int, dict[str, str]]:
    """Return the names of a notebook's copies by number and index within an array."""
    name = re.compile(rf"{re.escape(notebook.stem)}\.run-([0-9]+)-?([0-9]*)\.ipynb")
    copies: dict[int, dict[str, str]] = {}
    for entry in os.scandir(notebook.parent):
        if found := name.fullmatch(entry.name):
            copies.setdefault(int(found[1]), {})[found[2]] = entry.name
    return copies


def _is_of(array: str, notebook: Path, copies_of_number: Mapping[str, str]) -> bool:
    """Return True if copies belong to an array."""
    return _has_name(notebook.with_name(next(iter(copies_of_number.values()))), "array", array)


def _has_name(path: Path, key: str, name: str) -> bool:
    """Return True if a copy has this name of its job; one that is not yet written does."""
    try:
        text = path.read_bytes()
        return not text or bool(json.loads(text)["metadata"]["runai"][key] == name)
    except (OSError, ValueError, LookupError, TypeError):
        return False
