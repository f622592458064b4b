"""The environment of a submission: variables that a job takes from the shell or notebook.

A fixed list: no token, no library path, nothing that Python or the loader reads besides.
"""

import os
import re
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

from runai.hub_service.processes.accounts.umask import this_machine
from runai.hub_service.processes.shell_environment import beneath
from runai.hub_service.processes.user_environment import UserEnvironment
from runai.hub_service.wire.program_schemas import EnvironmentNote

_TAKEN: Final = re.compile(
    r"PATH|VIRTUAL_ENV|CONDA_PREFIX|CONDA_DEFAULT_ENV|LANG|TZ|LC_(?:ALL|ADDRESS|COLLATE|CTYPE"
    r"|IDENTIFICATION|MEASUREMENT|MESSAGES|MONETARY|NAME|NUMERIC|PAPER|TELEPHONE|TIME)"
)
_MOST_CHARACTERS: Final = 30_000
ENVIRONMENTS: Final = frozenset({"VIRTUAL_ENV", "CONDA_PREFIX"})
"""Variables of an active Python environment: PATH begins with its folder."""
_SESSION: Final = ("RUNAI_API_URL", "JUPYTERHUB_API_TOKEN", "JUPYTERHUB_SERVICE_PREFIX")
"""Variables of a session; one with a server name may have another image than jobs."""


def environment_note(environ: Mapping[str, str] = os.environ) -> EnvironmentNote:
    """Return the variables of this process that a job may take, with its machine."""
    return EnvironmentNote(
        variables={name: value for name, value in environ.items() if _is_taken(name, value)},
        machine=this_machine() or None,
        uid=os.geteuid(),
        in_session=all(environ.get(name) for name in _SESSION)
        and not environ.get("JUPYTERHUB_SERVER_NAME"),
    )


def environment_of_submission(
    note: EnvironmentNote | None, *, image: str | None, in_pods: bool, uid: int | None = None
) -> dict[str, str]:
    """Return the variables that a job takes; it runs as this uid, None: as our own account.

    {}: the client is another account, or on another machine; or jobs run in pods, and it is no
    notebook, or the job has another image than the notebook.
    """
    if note is None:
        return {}
    same_place = note.in_session and not image
    if not in_pods:
        here = os.geteuid() if uid is None else uid, this_machine()
        same_place = note.machine is not None and (note.uid, note.machine) == here
    taken = note.variables.items() if same_place else ()
    return {name: value for name, value in taken if _is_taken(name, value)}


def job_environment(
    account: Mapping[str, str], variables: Mapping[str, str], inherited: Collection[str]
) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the environment of a job, and how its worker makes the user's own Python environment.

    The user's own begins PATH, unless the submission had another one active: then nothing is made,
    and the platform's programs end PATH.
    """
    environment, root = beneath(account, variables), account["VIRTUAL_ENV"]
    takes_path = "PATH" in inherited
    if {variables.get(name, root) for name in ENVIRONMENTS} != {root}:
        if "VIRTUAL_ENV" not in variables:
            del environment["VIRTUAL_ENV"]
        if takes_path:
            folders = [*variables["PATH"].split(os.pathsep), str(Path(sys.executable).parent)]
            environment["PATH"] = os.pathsep.join(dict.fromkeys(folders))
        return environment, {}
    own, given = UserEnvironment(Path(account["HOME"])), variables if takes_path else os.environ
    if takes_path:
        environment |= own.variables(given)
    return environment, own.instructions(variables.keys() - set(inherited), given)


def _is_taken(name: str, value: str) -> bool:
    """Return True if a variable is taken; one that no request can carry is left out."""
    if not value or not _TAKEN.fullmatch(name) or len(value) > _MOST_CHARACTERS or "\0" in value:
        return False
    return not any("\ud800" <= character <= "\udfff" for character in value)
