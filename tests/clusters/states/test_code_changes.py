"""Code of a job's starts: what its history says, and what is stored."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runai.hub_service.clusters.states import code_changes, lifecycle, user_actions
from runai.hub_service.clusters.states.stored_workload import ExitStatus, Grant, StoredWorkload
from runai.hub_service.model.records import Code, Process, WorkloadSpec

OLD, NEW = "0" * 64, "1" * 64
SHORT, NEWER = "0" * 12, "1" * 12
OTHER_COMMIT = "another commit than the one that was submitted"
C1, C2 = "c" * 40, "d" * 40


def row(submitted: Code | None = None, before: Code | None = None) -> StoredWorkload:
    spec = WorkloadSpec("vision", "exp", "ana", "job", ("python", "t.py"), code=submitted)
    new_row = user_actions.submitted(spec, now=0.0, checkpoint_dir="", log_dir="").row
    assert new_row is not None
    return replace(new_row, record=replace(new_row.record, attempts=1, code=before), code_due=1)


def code_of(digest: str, commit: str = "") -> Code:
    return Code({"t.py": digest}, commit)


@pytest.mark.parametrize(
    ("submitted", "before", "now", "event"),
    [
        (code_of(OLD), None, code_of(OLD), ("code", f"t.py {SHORT}")),
        (code_of(OLD), code_of(NEW), code_of(NEW), None),
        (None, None, code_of(OLD, C1), ("code", f"t.py {SHORT}, commit {'c' * 12}")),
        (None, None, Code(), None),
        (code_of(OLD), None, None, None),
        (
            *(code_of(OLD), code_of(OLD), code_of(NEW)),
            (
                "warning",
                f"t.py is not the one that was submitted (now t.py {NEWER}; before t.py {SHORT})",
            ),
        ),
        (
            *(None, code_of(OLD), code_of(NEW)),
            (
                "warning",
                f"t.py is not the one of the start before (now t.py {NEWER}; before t.py {SHORT})",
            ),
        ),
        (
            *(code_of(OLD), None, code_of("gone")),
            ("warning", f"t.py is gone; it was there before (now t.py gone; before t.py {SHORT})"),
        ),
        (None, None, code_of("gone"), None),
        (code_of(OLD), None, code_of("not readable"), ("code", "t.py not readable")),
        (
            *(code_of(OLD, C1), None, code_of(OLD, C2)),
            (
                "code",
                f"t.py {SHORT}, commit {'d' * 12}; {OTHER_COMMIT}: {'c' * 12}",
            ),
        ),
        (Code({"u.py": OLD}), None, code_of(NEW), ("code", f"t.py {NEWER}")),
    ],
    ids=[
        *(
            "the same",
            "as before",
            "not submitted",
            "none",
            "not known",
            "edited",
            "edited since the start",
        ),
        *("gone", "never there", "not readable", "another commit", "invented name"),
    ],
)
def test_job_history_names_the_code_of_a_start_and_what_has_changed(submitted, before, now, event):
    transition = code_changes.noted(row(submitted, before), 1, now)

    assert transition.events == ((event,) if event else ())
    assert transition.row is not None
    assert transition.row.code_due == 0


def test_code_version_of_a_job_start_is_awaited_once_after_the_start():
    known = row(code_of(OLD))
    known = replace(known, record=replace(known.record, attempts=0), code_due=0)
    assert code_changes.awaited_start(known) is None

    started = lifecycle.started(known, [Grant(0, "n1", ())], now=1).row
    assert started is not None
    assert code_changes.awaited_start(started) is None
    running = lifecycle.running(started, 0, Process(100, 1), now=2).row
    assert running is not None
    assert code_changes.awaited_start(running) == (0, 1)
    failed = lifecycle.exited(running, 0, ExitStatus(2), now=3).row
    assert failed is not None
    assert code_changes.awaited_start(failed) == (0, 1)

    noted = code_changes.noted(failed, 1, code_of(OLD)).row
    assert noted is not None
    assert code_changes.awaited_start(noted) is None
    assert code_changes.noted(noted, 1, code_of(NEW)).events == ()
