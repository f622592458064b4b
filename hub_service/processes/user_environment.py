"""Each user's Python environment, over the platform's: libraries go there, not into the platform.

Run as a program, this makes or renews the environment of a home, as the user's own account:
`python -m runai.hub_service.processes.user_environment HOME`. It exits 1 if there is none to use,
and writes a sentence for its user on standard output.
"""

import fcntl
import json
import os
import shlex
import shutil
import signal
import site
import subprocess
import sys
import tempfile
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, Final, NamedTuple

from runai.hub_service.processes.own_process import MODULE

FOLDER: Final = ".runai-env"
"""Its folder in the home. Stored requests name the Python in it, so it stays where it is."""
NOTE: Final = "RUNAI_ENVIRONMENT_NOTE"
"""Variable of servers with a sentence for kernels and terminals."""
PROGRAM: Final = "runai.hub_service.processes.user_environment"
PLATFORM_KERNEL: Final = Path(__file__).with_name("platform_kernel")
"""Entry of JUPYTER_PATH whose kernel `python3` runs on the server's own Python."""
WITHIN_S: Final = 60  # one is made in 0.05 s; a home on a disk that hangs stops no start
_LAYER: Final = "zzz-runai-platform.pth"  # sorted last: the user's own paths go before
_OURS: Final = "runai-"  # begins our keys in pyvenv.cfg
_CHANGES: Final = {
    "version": "it was made for Python {}",
    "runai-platform": "it was made for the platform in {}",
    "runai-path": "it was made as {}",
    "home": "it was made for the Python in {}",
}


class Prepared(NamedTuple):
    """Outcome of a preparation."""

    usable: bool
    note: str = ""
    """Sentence for the user; "": there is nothing to know."""


@dataclass(frozen=True, slots=True)
class UserEnvironment:
    """The environment in one home; all methods run on the platform's Python."""

    home: Path

    @property
    def root(self) -> Path:
        """Return the environment's folder."""
        return self.home / FOLDER

    @property
    def python(self) -> Path:
        """Return the environment's Python, which kernels run and requests name."""
        return self.root / "bin/python"

    @property
    def _cfg(self) -> Path:
        return self.root / "pyvenv.cfg"

    @property
    def command(self) -> list[str]:
        """Return the command that prepares the environment."""
        return [*MODULE, PROGRAM, str(self.home)]

    def expected(self) -> dict[str, str]:
        """Return the two files that record the environment's Python and platform: path and text."""
        version = _version()
        settings = {
            # As venv itself finds the Python below an environment.
            "home": str(Path(getattr(sys, "_base_executable", sys.executable)).parent),
            "include-system-site-packages": "false",
            "version": version,
            "runai-platform": sys.prefix,
            "runai-path": str(self.root),
        }
        calls = (f"site.addsitedir({folder!a})" for folder in site.getsitepackages())
        return {
            str(self._cfg): "".join(f"{k} = {v}\n" for k, v in settings.items()),
            str(_libraries(self.root, version) / _LAYER): f"import site; {'; '.join(calls)}\n",
        }

    def path(self, *, usable: bool = True) -> list[str]:
        """Return the folders that begin PATH: the command `runai` first, the platform's last."""
        own = [str(self.root / "runai/bin"), str(self.root / "bin")] if usable else []
        return [*own, str(Path(sys.executable).parent)]

    def variables(self, given: Mapping[str, str], *, usable: bool = True) -> dict[str, str]:
        """Return PATH and the variables that pip and uv read, for an environment `given`.

        Without a usable environment, pip and uv fail instead of changing the platform.
        """
        path = [*self.path(usable=usable), *given.get("PATH", os.defpath).split(os.pathsep)]
        nowhere = {} if usable else _installing_in(self.root / "cannot-be-used")
        return {
            "PATH": os.pathsep.join(dict.fromkeys(path)),
            "VIRTUAL_ENV": str(self.root),
            **nowhere,
        }

    def instructions(self, chosen: Container[str], given: Mapping[str, str]) -> dict[str, Any]:
        """Return how a worker makes the environment; without it, all but `chosen` change.

        `given` has the PATH that stays in both cases.
        """
        fallback = self.variables(given, usable=False)
        return {
            "files": self.expected(),
            "program": str(self.python),
            "make": self.command,
            "without": {name: value for name, value in fallback.items() if name not in chosen},
        }

    def jupyter_path(self, given: str, *, usable: bool) -> str:
        """Return JUPYTER_PATH: kernels, then the front ends of the user's widget libraries."""
        own = [self.root / "runai/jupyter", self.root / "share/jupyter"]
        return os.pathsep.join(
            map(str, filter(None, [*(own if usable else [PLATFORM_KERNEL]), given]))
        )

    def prepare_as(
        self, uid: int | None = None, gid: int = 0, groups: Sequence[int] = ()
    ) -> Prepared:
        """Make or renew the environment in a program of this account; `uid` None: ours."""
        account: dict[str, Any] = {}
        if uid is not None:
            account = {"user": uid, "group": gid, "extra_groups": groups}
        passed_variables = ("PATH", "LD_LIBRARY_PATH")
        try:
            completed = subprocess.run(  # noqa: S603 - our own command
                self.command,
                cwd="/",
                env={k: v for k in passed_variables if (v := os.environ.get(k))},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                umask=0o077,
                check=False,
                **account,
            )
        except OSError as failed:
            return Prepared(False, self._unusable_text(failed.strerror or "it cannot be made"))
        note = completed.stdout.strip()
        if completed.returncode and not note:
            note = self._unusable_text("its disk does not answer")
        return Prepared(not completed.returncode, note)

    def prepare(self) -> Prepared:
        """Make the environment if it is missing, or anew if it was made for something else."""
        try:
            with self._locked_home():
                change = self._changed_setting()
                if change or not os.path.lexists(self.root):
                    self._make_anew(change)
                reason = self._unusable_reason()
                if not reason:
                    self._complete(self.root)
        except OSError as failed:
            reason = (failed.strerror or str(failed)).lower()
        if reason:
            return Prepared(False, self._unusable_text(reason))
        return Prepared(True, self._earlier_note())

    # -- what is there ---------------------------------------------------------------------------

    def _unusable_reason(self) -> str:
        """Return why the environment cannot be used; "" if it can."""
        for path, text in self.expected().items():
            if _text(path) != text:
                return f"{path} is damaged or missing"
        if not os.access(self.python, os.X_OK):
            return f"{self.python} is damaged or missing"
        for folder in (self.root, self.root / "bin", _libraries(self.root, _version())):
            if not os.access(folder, os.W_OK):
                return f"{folder} cannot be written"
        return ""

    def _changed_setting(self) -> str:
        """Return what the environment was made for, if its Python or place has changed; else ""."""
        now, recorded = _settings(self.expected()[str(self._cfg)]), _settings(_text(self._cfg))
        if not any(key.startswith(_OURS) for key in recorded):
            return ""  # damaged, or none of ours
        return next(
            (
                why.format(recorded.get(k))
                for k, why in _CHANGES.items()
                if recorded.get(k) != now[k]
            ),
            "",
        )

    def _unusable_text(self, why: str) -> str:
        """Return the sentence for an environment that cannot be made or used."""
        exists = os.path.lexists(self.root)
        old, new = shlex.quote(str(self.root)), shlex.quote(f"{self.root}.broken")
        hint = f"Begin a new one: mv {old} {new}" if exists else "Make room in your home"
        return (
            f"Your Python environment {self.root} cannot be used: {why}. This runs on the"
            f" platform's Python, into which you can install nothing. {hint}, then start again."
        )

    def _earlier_note(self) -> str:
        """Return the sentence about the earlier environment, until this one has libraries."""
        if any(_libraries(self.root, _version()).glob("*.dist-info")):
            return ""
        return _text(self.root / "runai/earlier")

    # -- making ----------------------------------------------------------------------------------

    @contextmanager
    def _locked_home(self) -> Iterator[None]:
        """Let one process at a time prepare it: a server and many workers may start at once."""
        folder = os.open(self.home, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with suppress(OSError):  # NFS locks no folder
                fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)

    def _make_anew(self, change: str) -> None:
        """Make the environment beside its place, then move it there; `change` says why anew."""
        import venv  # noqa: PLC0415 - rarely needed

        partial = Path(tempfile.mkdtemp(prefix=f"{FOLDER}-", dir=self.home))
        try:
            builder = venv.EnvBuilder(symlinks=True, prompt=FOLDER)
            context = builder.ensure_directories(str(partial))
            builder.setup_python(context)
            context.env_dir = str(self.root)  # for the scripts named activate
            builder.setup_scripts(context)
            for path, text in self.expected().items():
                (partial / Path(path).relative_to(self.root)).write_text(text, "utf-8")
            self._complete(partial)
            aside = self._unused_name()
            note = self._list_libraries(change, aside) if change else ""
            (partial / "runai/earlier").write_text(note, "utf-8")
            if change:
                self.root.rename(aside)
            partial.rename(self.root)
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def _unused_name(self) -> Path:
        number = 1
        while os.path.lexists(path := self.root.with_name(f"{FOLDER}.{number}")):
            number += 1
        return path

    def _list_libraries(self, change: str, aside: Path) -> str:
        """Write the list of its libraries into it; return the sentence that names the list."""
        folders = [str(folder) for folder in self.root.glob("lib/python*/site-packages")]
        found = sorted({f"{d.name}=={d.version}" for d in distributions(path=folders) if d.name})
        if not found:
            return ""
        (self.root / "requirements.txt").write_text("\n".join([*found, ""]), "utf-8")
        install = f"pip install -r {shlex.quote(str(aside / 'requirements.txt'))}"
        return (
            f"Your Python environment was made anew, empty: {change}. The earlier one is {aside};"
            f" this installs its libraries again: {install}"
        )

    def _complete(self, root: Path) -> None:
        """Write our kernels, and the platform's programs that it lacks."""
        platform = Path(sys.executable).parent
        own = {
            "python3": (self.python, "Python 3"),
            "python3-platform": (sys.executable, "Python 3 (platform)"),
        }
        for name, (python, title) in own.items():
            folder = root / "runai/jupyter/kernels" / name
            spec = json.loads((PLATFORM_KERNEL / "kernels/python3/kernel.json").read_text())
            spec["argv"][0], spec["display_name"] = str(python), title
            if python == sys.executable:  # %pip of the way back mends the user's environment
                spec["env"] = _installing_in(self.python)
            _write(folder / "kernel.json", json.dumps(spec))
            for logo in Path(sys.prefix, "share/jupyter/kernels/python3").glob("logo*"):
                if not (folder / logo.name).exists():
                    shutil.copyfile(logo, folder / logo.name)
        for program in _programs(platform):
            if program.name == "runai":
                link = root / "runai/bin/runai"
                link.parent.mkdir(exist_ok=True)
                if not os.path.lexists(link):
                    link.symlink_to(program)
            elif not os.path.lexists(script := root / "bin" / program.name):
                words = shlex.join([str(self.python), "-P", str(program)])
                _write(script, f'#!/bin/sh\nexec {words} "$@"\n')
                script.chmod(0o755)


def _installing_in(python: Path) -> dict[str, str]:
    """Return the variables that name to pip and uv the Python to install for."""
    return {"PIP_PYTHON": str(python), "UV_PYTHON": str(python)}


def _version() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def _libraries(root: Path, version: str) -> Path:
    return root / f"lib/python{version}/site-packages"


def _text(path: str | Path) -> str:
    try:
        return Path(path).read_text("utf-8", errors="replace")
    except OSError:
        return ""


def _settings(text: str) -> dict[str, str]:
    lines = (line.partition(" = ") for line in text.splitlines())
    return {key: value for key, _, value in lines}


def _write(path: Path, text: str) -> None:
    """Replace a file atomically, if its text differs."""
    if _text(path) == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(text, "utf-8")
    partial.replace(path)


def _programs(folder: Path) -> Iterator[Path]:
    """Yield the Python programs in a folder, as installers write them for its Python."""
    python = os.fsencode(folder / "python")
    for path in folder.iterdir():
        if path.is_file() and not path.name.startswith("python"):
            with path.open("rb") as file:
                head = file.read(512)
            # A long path is in the second line, for the shell: '''exec' "/…/python" "$0" "$@"
            if head.startswith(b"#!") and python in b"".join(head.splitlines()[:2]):
                yield path


def load_ipython_extension(shell: Any) -> None:  # noqa: ANN401 - IPython is not imported here
    """Print the sentence about the environment, if any, above the first output of a kernel."""
    note = os.environ.get(NOTE)

    def show(_cell: object) -> None:
        shell.events.unregister("pre_run_cell", show)
        sys.stderr.write(f"{note}\n")
        sys.stderr.flush()

    if note:
        shell.events.register("pre_run_cell", show)


def main() -> None:
    """Prepare the environment of the home in the arguments."""
    signal.alarm(WITHIN_S)
    prepared = UserEnvironment(Path(sys.argv[1])).prepare()
    sys.stdout.write(f"{prepared.note}\n" if prepared.note else "")
    sys.exit(not prepared.usable)


if __name__ == "__main__":
    main()
