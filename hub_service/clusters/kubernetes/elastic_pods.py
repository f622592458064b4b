"""What the pods of elastic jobs have beside those of others: a way to hear and tell, and an end.

Their program runs under `runai.elastic.pod`, which passes the messages between the job's directory
and the service; the token that it shows is its pod's own. Pure; called by `making`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

AUDIENCE = "runai-worker"
"""What the workers' tokens are for: nobody can use one with the API server itself."""
DIRECTORY = "/run/runai-elastic"
TOKEN_FOLDER = "/run/runai-token"  # noqa: S105  a folder
TOKEN_LASTS_S = 3600
_LEFT = 143


def under_relay(command: Sequence[str]) -> list[str]:
    """Return the command that runs a worker's own."""
    return ["python", "-m", "runai.elastic.pod", "--", *command]


def messages() -> tuple[Mapping[str, str], Sequence[Any], Sequence[Any]]:
    """Return the variables, volumes and mounts by which a worker hears and tells."""
    variables = {
        "RUNAI_ELASTIC_DIR": DIRECTORY,
        "RUNAI_WORKER_TOKEN_FILE": f"{TOKEN_FOLDER}/token",
    }
    token = {"audience": AUDIENCE, "expirationSeconds": TOKEN_LASTS_S, "path": "token"}
    volumes = [
        {"name": "runai-elastic", "emptyDir": {}},
        {"name": "runai-token", "projected": {"sources": [{"serviceAccountToken": token}]}},
    ]
    mounts = [
        {"name": "runai-elastic", "mountPath": DIRECTORY},
        {"name": "runai-token", "mountPath": TOKEN_FOLDER, "readOnly": True},
    ]
    return variables, volumes, mounts


def job_fields(container: str) -> tuple[Mapping[str, Any], Sequence[Any]]:
    """Return what a Job of workers that come and go says, and its rules for failed pods.

    Those that never started would keep it from being complete: the last one that trains ends it.
    """
    left = {"containerName": container, "operator": "In", "values": [_LEFT]}
    complete = {"successPolicy": {"rules": [{"succeededCount": 1}]}}
    return complete, [{"action": "Ignore", "onExitCodes": left}]
