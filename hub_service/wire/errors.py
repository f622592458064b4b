"""The platform's errors: each states the problem, the value and the way out.

    RunaiError
    ├── InvalidRequest   the request is invalid (bad value, unknown name, missing script)
    ├── Unauthenticated  the token is missing, unknown, revoked or expired
    ├── Forbidden        the user is known and not permitted
    ├── NotFound         no such project, workload, worker or node
    ├── Conflict         the request contradicts the state (name taken, already finished)
    └── Unavailable      a part of the platform is down: retry after `retry_after` seconds
        └── TooMany      the caller exceeds the rate limit: retry

An unschedulable workload is no error but a decision, `Wait(reason)`. `wire.problems` maps these
classes to HTTP statuses. Messages never contain tokens, headers or environment values.
"""

from typing import ClassVar


class RunaiError(Exception):
    """An error with a stable `code`, one sentence, and a `hint` with the way out."""

    default_code: ClassVar[str] = "error"

    def __init__(self, message: str, *, hint: str = "", code: str = "") -> None:
        """Store the sentence, the way out and the code (default: `default_code`)."""
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.code = code or self.default_code

    def __str__(self) -> str:
        """Return the sentence followed by the hint."""
        return f"{self.message} {self.hint}".rstrip()

    def _render_traceback_(self) -> list[str]:
        """Return the sentence instead of a traceback; IPython calls this in notebooks."""
        return [f"{type(self).__name__}: {self}"]


class InvalidRequest(RunaiError):
    """The request is invalid; the same request will fail again."""

    default_code = "invalid_request"


class Unauthenticated(RunaiError):
    """The token is missing, unknown, revoked or expired."""

    default_code = "unauthenticated"


class Forbidden(RunaiError):
    """This user may not see or change the object, which may exist or not."""

    default_code = "forbidden"


class NotFound(RunaiError):
    """No such project, workload, worker or node."""

    default_code = "not_found"


class Conflict(RunaiError):
    """The request contradicts the state: a name is taken, a workload already finished."""

    default_code = "conflict"


class Unavailable(RunaiError):
    """A part of the platform is down; the same request may succeed later."""

    default_code = "unavailable"

    def __init__(
        self, message: str, *, hint: str = "", code: str = "", retry_after: float = 1.0
    ) -> None:
        """Store the sentence and the seconds to wait before a retry."""
        super().__init__(message, hint=hint, code=code)
        self.retry_after = retry_after


class TooMany(Unavailable):
    """The caller exceeds the rate limit; the same request may succeed soon."""

    default_code = "too_many"
