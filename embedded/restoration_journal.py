"""The renames by which a backup takes the place of what is there: all of them, whatever ends us.

They are written down before the first (`restoring.json`), and whoever finds them written does what
is left of them. Until then neither the platform nor its service starts. Called by `restoring`.
"""

import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from runai.embedded.directory import write_private
from runai.hub_service.clusters.local.ownership import RESTORING
from runai.hub_service.errors import Conflict, Unavailable


@dataclass(frozen=True, slots=True)
class Journal:
    """A restoration that has everything it needs beside the platform, and is to take place."""

    backup: str
    databases: tuple[str, ...]
    stopped: tuple[str, ...]
    staged: str
    """The folder of what is to come; this and all other paths are below the data directory."""
    aside: str
    """The folder to which goes what is there."""
    moves: tuple[tuple[str, str], ...]
    """From where to where, in their order: what goes aside before what takes its place."""

    @classmethod
    def begun(cls, root: Path) -> "Journal | None":
        """Return the one that was begun in a data directory and is not done.

        Raises:
            Unavailable: what is written of it cannot be read.
        """
        path = root / RESTORING
        try:
            told = json.loads(path.read_bytes())
            return cls(
                backup=told["backup"],
                databases=tuple(told["databases"]),
                stopped=tuple(told["stopped"]),
                staged=told["staged"],
                aside=told["aside"],
                moves=tuple((str(source), str(target)) for source, target in told["moves"]),
            )
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as wrong:
            raise Unavailable(
                f"{path} says that a restoration was interrupted, and cannot be read.",
                hint="What was there lies in the newest before-restore-*, what was to come in"
                " .restoring-*: put one of them in place by hand, then remove that file.",
                code="restoration_unreadable",
            ) from wrong

    def begin(self, root: Path) -> None:
        """Write it down: from now on it takes place."""
        write_private(root / RESTORING, json.dumps(asdict(self), indent=2) + "\n")

    def finish(self, root: Path) -> None:
        """Do what is left of it; may be repeated.

        Raises:
            Unavailable: it cannot go on now.
            Conflict: something has come where the backup's is to be.
        """
        try:
            settle(root)  # the journal before what it tells of
            for source, target in self.moves:
                _move(root / source, root / target)
            for folder in {(root / target).parent for _, target in self.moves}:
                settle(folder)
        except OSError as failed:
            raise Unavailable(
                f"The restoration was interrupted: {failed.strerror}.",
                hint="The platform does not start until it is done: make room on its disk, then"
                " run the same command again.",
                code="restoration_interrupted",
            ) from failed
        left = [target for source, target in self.moves if _comes(self, source, root)]
        if left:
            raise Conflict(
                f"{root / left[0]} has come while the restoration was interrupted.",
                hint="Move it away, then run the same command again.",
                code="restoration_interrupted",
            )
        (root / RESTORING).unlink()
        settle(root)
        shutil.rmtree(root / self.staged, ignore_errors=True)


def settle(path: Path) -> None:
    """Have the disk keep what a file or folder holds now, a power cut or not."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _move(source: Path, target: Path) -> None:
    # Done before, where its target is there: a later move may have brought another source.
    if os.path.lexists(source) and not os.path.lexists(target):
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        source.rename(target)


def _comes(journal: Journal, source: str, root: Path) -> bool:
    return source.startswith(f"{journal.staged}/") and os.path.lexists(root / source)
