"""Code of a job's starts: what its history says, and what is stored."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runai.hub_service.clusters.states import code_changes, lifecycle, user_actions
from runai.hub_service.clusters.states.state import ExitStatus, Grant, StoredWorkload
from runai.hub_service.model.records import Code, Process, WorkloadSpec

OLD, NEW = "0" * 64, "1" * 64
SHORT, NEWER = "0" * 12, "1" * 12
OTHER = "another commit than the one that was submitted"
C1, C2 = "c" * 40, "d" * 40


def row(submitted: Code | None = None, before: Code | None = None) -> StoredWorkload:
    spec = WorkloadSpec("vision", "exp", "ana", "job", ("python", "t.py"), code=submitted)
    made = user_actions.submitted(spec, now=0.0, checkpoint_dir="", log_dir="").row
    assert made is not None
    return replace(made, record=replace(made.record, attempts=1, code=before), code_due=1)


def t(digest: str, commit: str = "") -> Code:
    return Code({"t.py": digest}, commit)


@pytest.mark.parametrize(
    ("submitted", "before", "now", "event"),
    [
        (t(OLD), None, t(OLD), ("code", f"t.py {SHORT}")),
        (t(OLD), t(NEW), t(NEW), None),
        (None, None, t(OLD, C1), ("code", f"t.py {SHORT}, commit {'c' * 12}")),
        (None, None, Code(), None),
        (t(OLD), None, None, None),
        (
            *(t(OLD), t(OLD), t(NEW)),
            (
                "warning",
                f"t.py is not the one that was submitted (now t.py {NEWER}; before t.py {SHORT})",
            ),
        ),
        (
            *(None, t(OLD), t(NEW)),
            (
                "warning",
                f"t.py is not the one of the start before (now t.py {NEWER}; before t.py {SHORT})",
            ),
        ),
        (
            *(t(OLD), None, t("gone")),
            ("warning", f"t.py is gone; it was there before (now t.py gone; before t.py {SHORT})"),
        ),
        (None, None, t("gone"), None),
        (t(OLD), None, t("not readable"), ("code", "t.py not readable")),
        (
            *(t(OLD, C1), None, t(OLD, C2)),
            (
                "code",
                f"t.py {SHORT}, commit {'d' * 12}; {OTHER}: {'c' * 12}",
            ),
        ),
        (Code({"u.py": OLD}), None, t(NEW), ("code", f"t.py {NEWER}")),
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
def test_history_names_the_code_and_what_has_changed(submitted, before, now, event):
    step = code_changes.noted(row(submitted, before), 1, now)

    assert step.events == ((event,) if event else ())
    assert step.row is not None
    assert step.row.code_due == 0


def test_each_start_is_noted_once_when_it_has_begun():
    known = row(t(OLD))
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

    noted = code_changes.noted(failed, 1, t(OLD)).row
    assert noted is not None
    assert code_changes.awaited_start(noted) is None
    assert code_changes.noted(noted, 1, t(NEW)).events == ()
