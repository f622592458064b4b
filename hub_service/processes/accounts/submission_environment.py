"""The environment of a submission: variables that a job takes from the shell or notebook.

A fixed list: no token, no library path, nothing that Python or the loader reads besides.
"""

import os
import re
from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Final

from runai.hub_service.processes.accounts.umask import this_machine
from runai.hub_service.processes.shell_environment import beneath
from runai.hub_service.processes.user_environment import UserEnvironment
from runai.hub_service.wire.program_schemas import EnvironmentNote

_TAKEN: Final = re.compile(
    r"PATH|VIRTUAL_ENV|CONDA_PREFIX|CONDA_DEFAULT_ENV|LANG|LC_[A-Z]{1,30}|TZ"
)
_ENVIRONMENTS: Final = frozenset({"VIRTUAL_ENV", "CONDA_PREFIX"})
"""Variables of an active Python environment: PATH begins with its folder."""


def environment_note(environ: Mapping[str, str] = os.environ) -> EnvironmentNote:
    """Return the variables of this process that a job may take, with its machine."""
    return EnvironmentNote(
        variables={name: value for name, value in environ.items() if _is_taken(name, value)},
        machine=this_machine() or None,
        in_session=bool(environ.get("RUNAI_API_URL") and environ.get("JUPYTERHUB_API_TOKEN")),
    )


def environment_of_submission(
    note: EnvironmentNote | None, *, image: str | None, in_pods: bool
) -> dict[str, str]:
    """Return the variables that a job takes.

    {}: the client is on another machine; or jobs run in pods, and it is no notebook, or the job has
    another image than the notebook.
    """
    if note is None:
        return {}
    same_place = note.in_session and not image
    if not in_pods:
        same_place = note.machine is not None and note.machine == this_machine()
    taken = note.variables.items() if same_place else ()
    return {name: value for name, value in taken if _is_taken(name, value)}


def job_environment(
    account: Mapping[str, str], variables: Mapping[str, str], inherited: Collection[str]
) -> tuple[dict[str, str], AbstractSet[str]]:
    """Return the environment of a job, and the names that it keeps on the platform's own Python.

    The user's own Python environment begins PATH, unless the submission had another one active.
    """
    environment, root = beneath(account, variables), account["VIRTUAL_ENV"]
    if {variables.get(name, root) for name in _ENVIRONMENTS} != {root}:
        if "VIRTUAL_ENV" not in variables:
            del environment["VIRTUAL_ENV"]
        return environment, variables.keys()
    if "PATH" in inherited:
        environment |= UserEnvironment(Path(account["HOME"])).variables(variables)
    return environment, variables.keys() - set(inherited)


def _is_taken(name: str, value: str) -> bool:
    return bool(value and _TAKEN.fullmatch(name))
