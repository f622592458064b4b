"""Code of a job's starts: what its history says, and what is stored."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runai.hub_service.clusters.states import code_changes, lifecycle, user_actions
from runai.hub_service.clusters.states.transition import ExitStatus
from runai.hub_service.model.records import Code, Grant, Process, WorkloadRecord, WorkloadSpec

OLD_DIGEST, NEW_DIGEST = "0" * 64, "1" * 64
OLD12, NEW12 = OLD_DIGEST[:12], NEW_DIGEST[:12]
COMMIT_WARNING = "another commit than the one that was submitted"
COMMIT, NEXT_COMMIT = "c" * 40, "d" * 40


def row_of(submitted: Code | None = None, before: Code | None = None) -> WorkloadRecord:
    spec = WorkloadSpec("vision", "exp", "ana", "job", ("python", "t.py"), code=submitted)
    new_row = user_actions.submitted(spec, now=0.0, checkpoint_dir="", log_dir="").row
    assert new_row is not None
    return replace(new_row, attempts=1, code=before, code_due=1)


def code_of(digest: str, commit: str = "") -> Code:
    return Code({"t.py": digest}, commit)


@pytest.mark.parametrize(
    ("submitted", "before", "current", "event"),
    [  # code at submission, at the start before, and now; the event in the history
        (code_of(OLD_DIGEST), None, code_of(OLD_DIGEST), ("code", f"t.py {OLD12}")),
        (code_of(OLD_DIGEST), code_of(NEW_DIGEST), code_of(NEW_DIGEST), None),
        (None, None, code_of(OLD_DIGEST, COMMIT), ("code", f"t.py {OLD12}, commit {'c' * 12}")),
        (None, None, Code(), None),
        (code_of(OLD_DIGEST), None, None, None),
        (
            *(code_of(OLD_DIGEST), code_of(OLD_DIGEST), code_of(NEW_DIGEST)),
            (
                "warning",
                f"t.py is not the one that was submitted (now t.py {NEW12}; before t.py {OLD12})",
            ),
        ),
        (
            *(None, code_of(OLD_DIGEST), code_of(NEW_DIGEST)),
            (
                "warning",
                f"t.py is not the one of the start before (now t.py {NEW12}; before t.py {OLD12})",
            ),
        ),
        (
            *(code_of(OLD_DIGEST), None, code_of("gone")),
            (
                "warning",
                f"t.py is gone; it was there before (now t.py gone; before t.py {OLD12})",
            ),
        ),
        (None, None, code_of("gone"), None),
        (code_of(OLD_DIGEST), None, code_of("not readable"), ("code", "t.py not readable")),
        (
            *(code_of(OLD_DIGEST, COMMIT), None, code_of(OLD_DIGEST, NEXT_COMMIT)),
            (
                "code",
                f"t.py {OLD12}, commit {'d' * 12}; {COMMIT_WARNING}: {'c' * 12}",
            ),
        ),
        (Code({"u.py": OLD_DIGEST}), None, code_of(NEW_DIGEST), ("code", f"t.py {NEW12}")),
    ],
    ids=[
        *("as submitted", "as at the start before", "nothing submitted", "no code file"),
        *("unknown", "edited since submission", "edited since the start before", "deleted"),
        *("never there", "unreadable", "another commit", "other file name"),
    ],
)
def test_job_history_names_the_code_of_a_start_and_what_has_changed(
    submitted, before, current, event
):
    transition = code_changes.noted(row_of(submitted, before), 1, current)

    assert transition.events == ((event,) if event else ())
    assert transition.row is not None
    assert transition.row.code_due == 0


def test_code_version_of_a_job_start_is_awaited_once_after_the_start():
    queued = row_of(code_of(OLD_DIGEST))
    queued = replace(queued, attempts=0, code_due=0)
    assert code_changes.awaited_start(queued) is None

    started = lifecycle.started(queued, [Grant(0, "n1", ())], now=1).row
    assert started is not None
    assert code_changes.awaited_start(started) is None
    running = lifecycle.running(started, 0, Process(100, 1), now=2).row
    assert running is not None
    assert code_changes.awaited_start(running) == (0, 1)
    failed = lifecycle.exited(running, 0, ExitStatus(2), now=3).row
    assert failed is not None
    assert code_changes.awaited_start(failed) == (0, 1)

    noted = code_changes.noted(failed, 1, code_of(OLD_DIGEST)).row
    assert noted is not None
    assert code_changes.awaited_start(noted) is None
    assert code_changes.noted(noted, 1, code_of(NEW_DIGEST)).events == ()
