"""Libraries that this package needs, named in a sentence if they are missing or too old.

Standard library only: it works where a library that all else needs does not.
"""

import re
import shlex
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import Distribution, PackageNotFoundError, distribution, distributions
from importlib.metadata import requires as required_by
from pathlib import Path
from typing import Final, NamedTuple

from runai.hub_service.processes.user_environment import FOLDER

_PACKAGE: Final = "jupyter-runai"
_REQUIREMENT: Final = re.compile(r'([\w.-]+)(?:\[(\w+)\])?([^;]*)(?:; extra == "(\w+)")?')


class UnmetRequirement(NamedTuple):
    """A library that is missing or too old."""

    name: str
    text: str
    install: str
    """Requirement to install instead, such as `pydantic>=2.12`."""


def unmet(extra: str = "") -> list[UnmetRequirement]:
    """Return the missing and too old libraries of the package itself, or of one of its extras."""
    found: list[UnmetRequirement] = []
    for name, inner, needed in _needs(_PACKAGE, extra):
        found += unmet(inner) if name == _PACKAGE else _unmet(name, needed)
    return found


def unmet_below() -> list[UnmetRequirement]:
    """Return the unmet requirements of the package, of the libraries it needs, and so on."""
    found: list[UnmetRequirement] = []
    packages = [_PACKAGE]
    for package in packages:
        for name, _, needed in _needs(package, ""):
            found += [each for each in _unmet(name, needed) if each not in found]
            packages += [] if name in packages else [name]
    return found


def _unmet(name: str, needed: str) -> list[UnmetRequirement]:
    """Return a library that is missing or older than needed, else nothing."""
    install = f"{name}>={needed}"
    try:
        version = distribution(name).version
    except PackageNotFoundError:
        return [UnmetRequirement(name, f"{name} is missing", install)]
    if _numbers(version) >= _numbers(needed):
        return []
    return [UnmetRequirement(name, f"{name} {version} is too old, {needed} is needed", install)]


def _needs(package: str, extra: str) -> Iterator[tuple[str, str, str]]:
    """Yield name, extra and least version of what a package needs everywhere."""
    try:
        needs = required_by(package) or ()
    except PackageNotFoundError:  # missing, or a checkout on PYTHONPATH
        return
    for each in needs:
        if (parsed := _REQUIREMENT.fullmatch(each)) is not None and (parsed[4] or "") == extra:
            min_version = re.search(r">=\s*([\w.]+)", parsed[3])
            yield parsed[1], parsed[2], min_version[1] if min_version else "0"


def unmet_here() -> list[UnmetRequirement]:
    """Return `unmet` of all that is installed: the client alone, or the platform."""
    with suppress(PackageNotFoundError):
        distribution("jupyterhub")
        return unmet() + unmet("hub")
    return unmet()


def in_words(found: Iterable[UnmetRequirement]) -> str:
    """Return the part of a sentence that names unmet requirements."""
    return "; ".join(each.text for each in found)


def install_command(found: list[UnmetRequirement]) -> str:
    """Return the command that installs what this Python lacks."""
    return shlex.join([sys.executable, "-m", "pip", "install", *(each.install for each in found)])


@contextmanager
def naming_libraries() -> Iterator[None]:
    """Replace a traceback of imports in a notebook, if a library of the user's is too old.

    Raises:
        UsageError: IPython shows its sentence alone. An ImportError where IPython is missing.
    """
    is_users = Path(sys.prefix).name == FOLDER
    found = unmet_below() if is_users else unmet()
    try:
        if not found:
            yield
            return
    except Exception as failed:
        found = _older_than_the_platforms()
        if not found:
            raise
        raise _mistake(found) from failed
    raise _mistake(found)


def _mistake(found: list[UnmetRequirement]) -> Exception:
    """Return the error to raise, with the command that mends it."""
    hint = f"%pip install {shlex.join(each.install for each in found)}"
    if Path(sys.prefix).name == FOLDER:  # without them the platform's are back
        hint = f"%pip uninstall -y {' '.join(each.name for each in found)}"
    sentence = (
        f"runai.widgets cannot be loaded: {in_words(found)}. Run {hint} and restart the kernel."
    )
    try:
        from IPython.core.error import UsageError  # noqa: PLC0415 - it may be what is missing
    except ImportError:
        return ImportError(sentence)
    return UsageError(sentence)


def _older_than_the_platforms() -> list[UnmetRequirement]:
    """Return the libraries of the user's environment that hide newer ones of the platform."""
    own = [path for path in sys.path if Path(path).is_relative_to(sys.prefix)]
    below = [path for path in sys.path if path not in own]
    platforms = {_name(each): each.version for each in distributions(path=below)}
    found = []
    for each in distributions(path=own):
        name = _name(each)
        newer = platforms.get(name, "")
        if _numbers(each.version) < _numbers(newer):
            text = f"{name} {each.version} is older than the platform's {newer}"
            found.append(UnmetRequirement(name, text, f"{name}>={newer}"))
    return found


def _name(found: Distribution) -> str:
    return re.sub(r"[-_.]+", "-", found.metadata["Name"] or "").lower()


def _numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a release, without zeros at its end."""
    numbers = re.match(r"[\d.]*", version)
    text = re.sub(r"(\.0*)*$", "", numbers[0]) if numbers else ""
    return tuple(int(part) for part in text.split(".") if part)
