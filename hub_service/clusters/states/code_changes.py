"""Code of a job's starts: pure transitions that note it, and name what has changed.

The base of each comparison is the submitted code, else that of the start before.
"""

from dataclasses import replace

from runai.hub_service.clusters.states.transition import Transition
from runai.hub_service.model.records import SHORT, Code, WorkloadRecord
from runai.hub_service.processes.program_files import MISSING, UNREADABLE


def awaited_start(row: WorkloadRecord) -> tuple[int, int] | None:
    """Return index and attempt of the worker whose code is to be noted; None: it is known."""
    worker = next((w for w in row.workers if w.attempt == row.code_due), None)
    if not row.code_due or worker is None:
        return None
    has_begun = worker.process is not None or worker.state == "finished"
    return (worker.index, row.code_due) if has_begun else None


def expected_files(row: WorkloadRecord) -> list[str]:
    """Return the files of the command that were there before."""
    base = row.spec.code or row.code
    return (
        [] if base is None else [name for name, digest in base.files.items() if digest != MISSING]
    )


def noted(row: WorkloadRecord, attempt: int, code: Code | None) -> Transition:
    """Record the code of a start, with an event if it differs from the base.

    `code` None: it is not known.
    """
    if attempt != row.code_due:
        return Transition(row)
    last, expected = row.code, expected_files(row)
    base = row.spec.code or last
    if code is not None:  # a name that never was a file says nothing
        known = {n: d for n, d in code.files.items() if d != MISSING or n in expected}
        code = replace(code, files=known)
    row = replace(row, code_due=0, code=code)
    is_same = code and last and (code.files, code.commit) == (last.files, last.commit)
    if code is None or is_same or not (text := code.text()):
        return Transition(row)
    if base is None:
        return Transition(row, (("code", text),))
    before = "the one that was submitted" if row.spec.code else "the one of the start before"
    both = {n: (code.files[n], base.files[n]) for n in expected if n in code.files}
    changes = [
        f"{name} is gone; it was there before" if now == MISSING else f"{name} is not {before}"
        for name, (now, was) in both.items()
        if now != was and UNREADABLE not in {now, was}
    ]
    if changes:
        then = Code({name: base.files[name] for name in both}, base.commit)
        text = f"{'; '.join(changes)} (now {text}; before {then.text()})"
        return Transition(row, (("warning", text),))
    if code.commit != base.commit:
        text += f"; another commit than {before}: {base.commit[:SHORT] or 'none'}"
    return Transition(row, (("code", text),))
