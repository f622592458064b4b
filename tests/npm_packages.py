"""Files of npm packages for tests: fetched once into the user's cache, not in the repository."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

CACHE = Path.home() / ".cache" / "runai"


@cache
def why_not_fetched(package: str, version: str, member: str, target: Path) -> str:
    """Put one file of a package at `target` if it is not there; return why not, "" on success."""
    if target.exists():
        return ""
    npm = shutil.which("npm")
    if npm is None:
        return f"no npm to fetch {package} with"
    with TemporaryDirectory() as folder:
        command = [npm, "pack", f"{package}@{version}", "--silent", "--pack-destination", folder]
        try:
            fetched = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=100
            )
        except subprocess.TimeoutExpired:
            return f"npm could not fetch {package}: no answer"
        if fetched.returncode:
            return f"npm could not fetch {package}: {fetched.stderr.strip()[-200:]}"
        with tarfile.open(next(Path(folder).glob("*.tgz"))) as archive:
            found = archive.extractfile(f"package/{member}")
            assert found is not None
            target.parent.mkdir(parents=True, exist_ok=True)
            fresh = target.with_suffix(f".{os.getpid()}")
            fresh.write_bytes(found.read())
            fresh.replace(target)
    return ""
