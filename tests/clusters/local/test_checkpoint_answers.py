"""The local cluster after a pause: whether the job has left a new checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from labs import LocalLab, local_lab, plan, start, stop
from runai.hub_service.clusters.local.processes import attempt_answers
from runai.hub_service.clusters.local.processes.attempt import Attempt
from waiting import eventually_async

SAVE_COMMAND = 'touch "$RUNAI_CHECKPOINT_DIR/model"'
JOB_SCRIPT = """
trap '%s; exit 143' TERM
touch "$RUNAI_CHECKPOINT_DIR/../ready-${RANK:-0}"
while :; do sleep 0.05; done
"""
NOTHING_NEW_WARNING = (
    "paused; nothing new in its checkpoint directory: "
    "unless it saves elsewhere, it starts where it began"
)


async def warnings(lab: LocalLab, workload: str) -> list[str]:
    return [event.text for event in await lab.cluster.history(workload) if event.kind == "warning"]


async def pause(lab: LocalLab, workload: str, workers: int = 1) -> None:
    """Start a job, and pause it when its trap is set."""
    indexes = range(workers)
    record = await lab.cluster.workload(workload)
    job_dir = Path(record.checkpoint_dir).parent
    for index in indexes:
        (job_dir / f"ready-{index}").unlink(missing_ok=True)
    starts = [start(workload, index, worker=index) for index in indexes]
    assert await lab.cluster.apply(plan(*starts)) == []
    for index in indexes:
        await eventually_async((job_dir / f"ready-{index}").exists)
    assert await lab.cluster.apply(plan(*(stop(workload, index) for index in indexes))) == []
    await lab.until(workload, "paused")


async def wait_until_examined(lab: LocalLab, workload: str) -> None:
    """Wait until the last pause is examined."""

    def is_examined() -> bool:
        row = lab.cluster.row(workload)
        return row is not None and row.unexamined == ()

    await eventually_async(is_examined)


@pytest.mark.parametrize(
    ("on_term", "fields", "expected_warnings"),
    [
        (":", {}, [NOTHING_NEW_WARNING]),
        (":", {"saves": True}, [NOTHING_NEW_WARNING, NOTHING_NEW_WARNING]),
        (SAVE_COMMAND, {"saves": True}, []),
    ],
    ids=["job without saves=True", "job that should save", "job that saves"],
)
async def test_pause_without_a_new_checkpoint_is_a_warning_in_the_history(
    lab, on_term, fields, expected_warnings
):
    """A job that should save gets a warning at each of two pauses, any other job at the first."""
    spec = lab.job(command=("sh", "-c", JOB_SCRIPT % on_term), **fields)
    await lab.cluster.submit([spec])
    for pause_number in (1, 2):
        await pause(lab, spec.id)
        await wait_until_examined(lab, spec.id)
        record = await lab.cluster.workload(spec.id)
        assert record.unsaved is (len(expected_warnings) >= pause_number)

    assert await warnings(lab, spec.id) == expected_warnings
    assert lab.cluster.unsaved_pauses().get("vision", 0) == len(expected_warnings)


async def test_gang_pause_has_no_warning_if_one_worker_has_saved(lab):
    first_saves = 'case "${RANK:-0}" in 0) ' + SAVE_COMMAND + ";; esac"
    spec = lab.job(command=("sh", "-c", JOB_SCRIPT % first_saves), workers=2, saves=True)
    await lab.cluster.submit([spec])

    await pause(lab, spec.id, 2)
    await wait_until_examined(lab, spec.id)

    assert await warnings(lab, spec.id) == []


async def test_checkpoint_answer_written_without_a_service_is_read_by_the_next(
    tmp_path, monkeypatch
):
    async with local_lab(tmp_path, forget=False) as lab:
        monkeypatch.setattr(
            attempt_answers.CheckpointAnswers, "enqueue", lambda *_: None
        )  # as if the service were killed before it reads the answer
        spec = lab.job(command=("sh", "-c", JOB_SCRIPT % ":"))
        await lab.cluster.submit([spec])
        await pause(lab, spec.id)
        assert (row := lab.cluster.row(spec.id)) is not None
        assert row.unexamined == ((0, 1),)  # worker 0, attempt 1
    monkeypatch.undo()

    async with local_lab(tmp_path) as lab:
        await wait_until_examined(lab, spec.id)
        assert await warnings(lab, spec.id) == [NOTHING_NEW_WARNING]


@pytest.mark.parametrize("answers", [[None], [None, False]], ids=["none", "one of two"])
async def test_pause_with_missing_checkpoint_answers_ends_without_a_warning(
    lab, monkeypatch, answers
):
    monkeypatch.setattr(attempt_answers.CheckpointAnswers, "within_s", -attempt_answers.LATE_S)
    answer_iterator = iter(answers * 1000)
    monkeypatch.setattr(Attempt, "has_new_checkpoint", lambda _: next(answer_iterator))
    spec = lab.job(command=("sh", "-c", JOB_SCRIPT % ":"), workers=len(answers), saves=True)
    await lab.cluster.submit([spec])

    await pause(lab, spec.id, len(answers))
    await wait_until_examined(lab, spec.id)

    assert await warnings(lab, spec.id) == []
