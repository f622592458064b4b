"""Which process has a platform's cluster open, and whether it keeps another one from its work.

Changes nothing by looking. Called by `examination`, whose findings these are.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from runai.hub_service.cli.findings import Finding
from runai.hub_service.errors import Conflict

_SUBJECT: Final = "cluster"


def check_ownership(root: Path) -> Iterator[Finding]:
    """Is the process at work that has the cluster open, does none wait for it, is it whole?"""
    # The hub's half of the distribution: only where a platform runs.
    from runai.hub_service.clusters.local.ownership import (  # noqa: PLC0415
        LOCK,
        check_is_whole,
        holder,
        waiting,
    )

    try:
        check_is_whole(root)
    except Conflict as half:
        yield Finding("failure", _SUBJECT, half.message.rstrip("."), half.hint)
    by = holder(root / LOCK)
    if by is None:
        return
    text = f"it is open in {by}"
    others = ", ".join(str(pid) for pid in waiting(root / LOCK))
    if by.is_frozen:
        mend = f"kill -CONT {by.pid} has it go on; after kill -TERM {by.pid} it ends by that."
        yield Finding("failure", _SUBJECT, f"{text}, which is frozen: nothing is decided", mend)
    elif others and by.pid:
        text = f"{text}, for which process {others} waits"
        mend = f"Is it not about to end? Then it hangs: {by.way_out} Else look again."
        yield Finding("failure", _SUBJECT, text, mend)
    else:
        yield Finding("ok", _SUBJECT, text)
