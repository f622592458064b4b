"""The wire contract between the service and the pods of elastic jobs (docs/dev/elastic.md).

The same messages as in `elastic_messages`, which workers read from files; these schemas validate
them at the API.
"""

from typing import Annotated

from pydantic import Field, StringConstraints

from runai.hub_service.wire.amounts import NUMBER
from runai.hub_service.wire.base_schema import Wire
from runai.hub_service.wire.elastic_messages import Reason, Target, WorkerPhase, WorkerStatus

Count = Annotated[int, Field(ge=0, le=1 << 53), NUMBER]
Speed = Annotated[float, Field(ge=0, le=1e15, allow_inf_nan=False), NUMBER]


class TargetMessage(Wire):
    """Workers that train from now on."""

    gen: Count
    ranks: tuple[Annotated[str, StringConstraints(max_length=100)], ...]
    store: str
    gpus: Count
    min: Count
    max: Count
    reason: Reason
    deadline: str = ""


class TargetReply(Wire):
    """The newest target; None: no newer one appeared in time."""

    target: TargetMessage | None = None

    @classmethod
    def of(cls, target: Target) -> "TargetReply":
        """Return the reply for a target."""
        return cls(target=TargetMessage.model_validate(target.to_json()))

    def read(self) -> Target | None:
        """Convert the reply to a `Target`; None if no newer one appeared in time."""
        if self.target is None:
            return None
        return Target.from_json(
            self.target.model_dump(mode="json") | {"ranks": list(self.target.ranks)}
        )


class StatusReport(Wire):
    """Phase, progress and speed of an elastic job's worker, as it reports them."""

    gen: Count
    state: WorkerPhase
    pid: Count
    update: Count = 0
    samples_per_s: Speed = 0.0
    gpus: Count = 0
    global_batch: Count = 0
    steps: Count = 0

    @classmethod
    def of(cls, status: WorkerStatus) -> "StatusReport":
        """Return the report of a status, without the worker: its token identifies it."""
        fields = status.to_json()
        del fields["worker"]
        return cls.model_validate(fields)

    def read(self, worker: str) -> WorkerStatus:
        """Parse the status of this worker."""
        return WorkerStatus.from_json({"worker": worker, **self.model_dump(mode="json")})


class EndedReport(Wire):
    """Exit code of a worker's program; 128 + N after signal N."""

    exit_code: Annotated[int, Field(ge=0, le=255), NUMBER]


class EndedReply(Wire):
    """Exit code for the worker's pod."""

    exit_code: Annotated[int, Field(ge=0, le=255), NUMBER]
