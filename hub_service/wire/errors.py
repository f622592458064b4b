"""Say what went wrong, with what value, and what the way out is.

    RunaiError
    ├── InvalidRequest   what was asked cannot be meant (bad value, unknown name, missing script)
    ├── Unauthenticated  nobody known asks: no token, or one that is revoked or expired
    ├── Forbidden        known, but not for this user
    ├── NotFound         no such project, workload, worker or node
    ├── Conflict         it contradicts what is there (name taken, already finished)
    └── Unavailable      try again: a part of the platform is away; `retry_after` seconds says when
        └── TooMany      try again: the caller asks more than is anybody's part

Not being schedulable is no error but a decision, `Wait(reason)`. This module knows no HTTP;
`api.problems` holds the one table of statuses.
Messages never carry tokens, headers or environment values.
"""

from typing import ClassVar


class RunaiError(Exception):
    """Carry a stable `code`, one sentence, and a `hint` that names the way out."""

    default_code: ClassVar[str] = "error"

    def __init__(self, message: str, *, hint: str = "", code: str = "") -> None:
        """Keep the sentence, the way out and the code (default: the class's own)."""
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.code = code or self.default_code

    def __str__(self) -> str:
        """Return the sentence and, behind it, the way out."""
        return f"{self.message} {self.hint}".rstrip()

    def _render_traceback_(self) -> list[str]:
        """Show a notebook the sentence alone; IPython asks an error for it."""
        return [f"{type(self).__name__}: {self}"]


class InvalidRequest(RunaiError):
    """What was asked cannot be meant; the same request will fail again."""

    default_code = "invalid_request"


class Unauthenticated(RunaiError):
    """Nobody known asks: no token was given, or it is revoked or expired."""

    default_code = "unauthenticated"


class Forbidden(RunaiError):
    """The thing may exist, but this user may not see or change it."""

    default_code = "forbidden"


class NotFound(RunaiError):
    """No such project, workload, worker or node."""

    default_code = "not_found"


class Conflict(RunaiError):
    """The request contradicts what is there: a name taken, a workload already finished."""

    default_code = "conflict"


class Unavailable(RunaiError):
    """A part of the platform is away; the same request may succeed later."""

    default_code = "unavailable"

    def __init__(
        self, message: str, *, hint: str = "", code: str = "", retry_after: float = 1.0
    ) -> None:
        """Keep the sentence and the seconds after which to try again."""
        super().__init__(message, hint=hint, code=code)
        self.retry_after = retry_after


class TooMany(Unavailable):
    """The caller asks more than is anybody's part; what they ask for now may succeed soon."""

    default_code = "too_many"
