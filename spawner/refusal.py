"""Say no to a server start with one sentence, on JupyterHub 5 and 6 alike.

JupyterHub 6 has an exception for it (no traceback, no count towards the failures that end the hub);
5 gets the same shape from an HTTP error below 500. Raised by the spawners only.
"""

from typing import Any

import jupyterhub.spawner
from tornado.web import HTTPError

from runai.hub_service.wire.errors import RunaiError


class _SpawnException5(HTTPError):
    """JupyterHub 6's exception as far as it is used here, for JupyterHub 5."""

    def __init__(self, message: str, *, reason: str, status_code: int = 400) -> None:
        super().__init__(status_code, message, reason=reason)


_SpawnException: Any = getattr(jupyterhub.spawner, "SpawnException", _SpawnException5)


class SessionRefused(_SpawnException):
    """A session that will not start; the sentence is what the user reads."""

    def __init__(self, message: str, *, reason: str, status_code: int = 400) -> None:
        super().__init__(message, reason=reason, status_code=status_code)
        # What both versions show on the form and at the end of the progress bar.
        self.jupyterhub_message = message

    @classmethod
    def of(cls, error: RunaiError) -> "SessionRefused":
        """Pass on what the service refused, with its way out."""
        return cls(str(error), reason=error.code)


class StartTimeout(TimeoutError):
    """A server that had what it asked for and did not come up: a failure, and counted as one."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.jupyterhub_message = message
