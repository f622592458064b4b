"""Pages of a list of workloads: in the order of submission, then name, from a token on.

Pure. A token is the key of the last workload of the page before, so none comes twice; one that
changes its place meanwhile may be missed. Used by `workloads`.
"""

from collections import Counter
from collections.abc import Sequence

from runai.hub_service.api.schemas import WorkloadPage
from runai.hub_service.api.views import Viewer
from runai.hub_service.clusters.records import WorkloadRecord
from runai.hub_service.errors import InvalidRequest

Key = tuple[float, str, str, int]


def page_of(
    viewer: Viewer, records: Sequence[WorkloadRecord], *, limit: int, after: str
) -> WorkloadPage:
    """Return the first of the records after a token, "" for the beginning, and counts of all.

    Raises:
        InvalidRequest: the token is none.
    """
    keyed = sorted((_key(record.submitted, record.id), record) for record in records)
    if after:
        last = _key_of(after)
        rest = [record for key, record in keyed if key > last]
    else:
        rest = [record for _, record in keyed]
    shown = rest[:limit]
    token = f"{shown[-1].submitted!r}:{shown[-1].id}" if len(rest) > limit else None
    return WorkloadPage(
        items=[viewer.workload(record) for record in shown],
        next_token=token,
        counts=Counter(record.state.value for record in records),
    )


def _key(submitted: float, workload: str) -> Key:
    """Return what sorts workloads; the elements of an array by their number."""
    project, _, name = workload.partition("/")
    stem, dash, number = name.rpartition("-")
    if dash and number.isdecimal():
        return submitted, project, stem, int(number)
    return submitted, project, name, -1


def _key_of(token: str) -> Key:
    submitted, _, workload = token.partition(":")
    try:
        return _key(float(submitted), workload)
    except ValueError:
        raise InvalidRequest(
            f"continue is {token}, which is no place in a list.",
            hint="Give what the page before has under `continue`.",
        ) from None
