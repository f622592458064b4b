"""Pages of a workload list, ordered by submission time and name, with continue tokens.

Pure. A token is the key of the previous page's last workload, so no workload appears twice; one
that moves meanwhile may be missed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal
from urllib.parse import urlencode

from runai.hub_service.api.views.viewer import Viewer
from runai.hub_service.model.arrays import states_of
from runai.hub_service.model.records import WorkloadRecord
from runai.hub_service.wire.errors import InvalidRequest
from runai.hub_service.wire.schemas import WorkloadPage, WorkloadStateName

Key = tuple[float, str, str, int]


@dataclass(frozen=True, slots=True)
class WorkloadListFilter:
    """Filter of a workload list; empty: all that the reader may see."""

    project: str = ""
    user: str = ""
    state: WorkloadStateName | Literal[""] = ""
    kind: Literal["", "job", "session"] = ""
    text: str = ""
    """Substring of a name, its project's included, or of a user."""
    manageable: bool = False
    """Only workloads that the reader may suspend, resume and delete."""

    def records(self, viewer: Viewer) -> list[WorkloadRecord]:
        """Return the matching workloads that the reader may see."""
        read_model = viewer.read_model
        return [
            record
            for record in (
                read_model.queues.owned(self.user) if self.user else read_model.workloads
            )
            if (not self.project or record.spec.project == self.project)
            and (not self.state or record.state.value == self.state)
            and (not self.kind or record.spec.kind == self.kind)
            and (not self.text or self.text in record.id or self.text in record.spec.user)
            and viewer.may_see(record)
            and (not self.manageable or viewer.may_change(record))
        ]

    def query(self) -> str:
        """Return the set fields as a query string."""
        items = ((field.name, getattr(self, field.name)) for field in fields(self))
        return urlencode({name: value for name, value in items if value})


def page_of(
    viewer: Viewer, records: Sequence[WorkloadRecord], *, limit: int, after: str
) -> WorkloadPage:
    """Return the page of records after a token ("": from the beginning), and counts of all.

    Raises:
        InvalidRequest: the token is invalid.
    """
    keyed = sorted((_key(record.submitted, record.id), record) for record in records)
    if after:
        last = _key_of(after)
        rest = [record for key, record in keyed if key > last]
    else:
        rest = [record for _, record in keyed]
    page = rest[:limit]
    token = f"{page[-1].submitted!r}:{page[-1].id}" if len(rest) > limit else None
    return WorkloadPage(
        items=[viewer.workload(record) for record in page],
        next_token=token,
        counts={state.value: many for state, many in states_of(records).items()},
    )


def _key(submitted: float, workload: str) -> Key:
    """Return a workload's sort key; elements of an array sort by number."""
    project, _, name = workload.partition("/")
    stem, dash, number = name.rpartition("-")
    if dash and number.isdecimal():
        return submitted, project, stem, int(number)
    return submitted, project, name, -1


def _key_of(token: str) -> Key:
    """Parse a token; raise InvalidRequest if it is none."""
    submitted, _, workload = token.partition(":")
    try:
        return _key(float(submitted), workload)
    except ValueError:
        raise InvalidRequest(
            f"continue is {token}, which is no place in a list.",
            hint="Give what the page before has under `continue`.",
        ) from None
