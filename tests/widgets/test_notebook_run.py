"""The runner of notebooks, with real kernels: the copy, the log, pauses, failures, full disks."""

from __future__ import annotations

import json
import os
import resource
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from runai.hub_service.model.progress import read_progress
from runai.hub_service.wire.errors import InvalidRequest
from runai.widgets.notebook_run import __main__ as program
from runai.widgets.notebook_run.cell_text import cut_text, overwritten
from runai.widgets.notebook_run.executed_copy import NotebookCopy

RUNNER = (sys.executable, "-m", "runai.widgets.notebook_run")
STARTED = "study.ipynb runs as study.run-1.ipynb, kernel python3"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """The environment of a job at its first start."""
    checkpoints = tmp_path / "checkpoints"
    checkpoints.mkdir()
    own = {"RUNAI_CHECKPOINT_DIR": str(checkpoints), "RUNAI_WORKLOAD": "vision/exp1"}
    return os.environ | own | {"RUNAI_RESUMED": "0"}


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes study.ipynb with these cells."""

    def write_notebook(*cells: Any, kernel: str = "python3") -> Path:
        made = [new_code_cell(cell) if isinstance(cell, str) else cell for cell in cells]
        metadata = {"kernelspec": {"name": kernel, "language": "python", "display_name": "x"}}
        path = tmp_path / "study.ipynb"
        nbformat.write(new_notebook(cells=made, metadata=metadata), path)
        return path

    return write_notebook


@pytest.fixture
def start(
    tmp_path: Path, environment: dict[str, str]
) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Return a function that starts the runner with study.ipynb."""
    started: list[subprocess.Popen[str]] = []

    def start_runner(
        *arguments: str, preexec_fn: Callable[[], None] | None = None
    ) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*RUNNER, "study.ipynb", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
            cwd=tmp_path,
            preexec_fn=preexec_fn,  # noqa: PLW1509 - no thread runs here
        )
        started.append(process)
        return process

    yield start_runner
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def copy_of(notebook: Path, number: str = "1") -> Any:
    return nbformat.read(notebook.with_name(f"study.run-{number}.ipynb"), 4)


def test_copy_has_parameters_and_outputs_and_the_log_names_each_cell(write, start, environment):
    path = write(
        new_markdown_cell("# Study"),
        new_code_cell("rate, title = 1, 'x'", metadata={"tags": ["parameters"]}, execution_count=9),
        "for part in ('1 %', '\\r2 %', '\\r3 %\\n', 'done\\n'): print(part, end='', flush=True)",
        "",
        new_code_cell("1 / 0", metadata={"tags": ["raises-exception"]}),
        "import os\nprint([rate, title], os.environ['RUNAI_WORKLOAD'], os.getcwd())\nrate",
        kernel="conda-x",
    )
    path.chmod(0o640)

    process = start("--set", "rate=0.5", "--set", "title=it's here")
    log, _ = process.communicate()

    assert process.returncode == 0
    assert log.splitlines() == [
        f"{STARTED}, since the notebook's own (conda-x) is not here",
        *("cell 1 of 4", "cell 2 of 4", "1 %", "2 %", "3 %", "done", "cell 3 of 4", "cell 4 of 4"),
        f"""[0.5, "it's here"] vision/exp1 {path.parent}""",
    ]
    copy = copy_of(path)
    nbformat.validate(copy)
    assert copy.cells[2].source == '# Parameters\nrate = 0.5\ntitle = "it\'s here"'
    assert copy.cells[2].metadata.tags == ["injected-parameters"]
    counts = [cell.execution_count for cell in copy.cells if cell.cell_type == "code"]
    assert counts == [1, None, 2, None, 3, 4]
    assert [output.text for output in copy.cells[3].outputs] == ["3 %\ndone\n"]
    assert copy.cells[5].outputs[0].ename == "ZeroDivisionError"
    assert copy.cells[6].outputs[-1].data["text/plain"] == "0.5"
    assert copy.metadata.runai.state == "succeeded"
    assert stat.S_IMODE(path.with_name("study.run-1.ipynb").stat().st_mode) == 0o640
    assert {each.name for each in path.parent.glob("*study*")} == {path.name, "study.run-1.ipynb"}
    progress = read_progress(
        Path(environment["RUNAI_CHECKPOINT_DIR"], "progress.json").read_bytes()
    )
    assert progress is not None
    assert progress.cells == (4, 4)


def test_failing_cell_ends_the_run_and_shows_its_error(write, start):
    path = write("import sys; print('open end', end='', file=sys.stderr)\nint('x')", "print('no')")

    process = start()
    log, _ = process.communicate()

    assert process.returncode == 1
    error = "ValueError: invalid literal for int() with base 10: 'x'"
    assert log.endswith(f"cell 1 of 2\nopen end\ncell 1 of 2 failed: {error}\n")
    copy = copy_of(path)
    assert copy.cells[0].outputs[-1].output_type == "error"
    assert copy.cells[1].outputs == []
    assert copy.metadata.runai.state == "failed"


def test_killed_kernel_fails_the_cell_with_one_sentence(write, start):
    write("import os; os.kill(os.getpid(), 9)")

    log, _ = start().communicate()

    assert log == (
        f"{STARTED}\ncell 1 of 1\n"
        "cell 1 of 1 failed: its kernel died; it may have used too much memory\n"
    )


WAITING = """
import time
print('begin', flush=True)
try:
    while True:
        time.sleep(0.02)
except KeyboardInterrupt:
    print('saved')
"""


def test_pause_saves_the_copy_and_the_next_start_overwrites_it(
    write, start, environment, eventually
):
    path = write("print('first')", WAITING, "print('never')")
    copy = path.with_name("study.run-1.ipynb")
    for starts in (1, 2):
        environment["RUNAI_RESUMED"] = str(starts - 1)
        process = start()
        # In the copy while the cell runs, too.
        eventually(lambda: copy.exists() and "begin\\n" in copy.read_text())

        process.send_signal(signal.SIGTERM)
        log, _ = process.communicate()

        assert process.returncode == 128 + signal.SIGTERM
        assert log.startswith("started again (2): " * (starts - 1) + STARTED)
        assert "saved\nstopped in cell 2 of 3, study.run-1.ipynb is saved." in log
        content = copy_of(path)
        assert content.cells[-2].outputs[0].text == "begin\nsaved\n"
        assert content.cells[-1].outputs == []
        assert (content.metadata.runai.state, content.metadata.runai.starts) == ("paused", starts)
        assert (content.cells[0].source == "*started again (2)*") == (starts == 2)
        copy.write_text("")
    assert not path.with_name("study.run-2.ipynb").exists()


def test_pause_while_the_kernel_starts_ends_at_once(write, start, eventually):
    path = write("print('never')")
    process = start()
    eventually(path.with_name("study.run-1.ipynb").exists)

    process.send_signal(signal.SIGTERM)

    assert process.wait() == 128 + signal.SIGTERM
    copy = copy_of(path)
    assert copy.cells[0].outputs == []
    assert copy.metadata.runai.state == "paused"


def limit_files(size: int) -> None:
    """Let this process write files of at most so many bytes, as on a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def test_full_disk_fails_before_the_first_cell_with_a_sentence(write, start):
    path = write("print('never')")

    process = start(preexec_fn=partial(limit_files, 0))
    log, _ = process.communicate()

    assert process.returncode == 1
    assert log == (
        f"The executed copy of study.ipynb cannot be written: {path.parent}: File too large.\n"
    )
    assert [each.name for each in path.parent.glob("*study*")] == ["study.ipynb"]


def test_disk_that_fills_later_is_named_once_and_fails_the_job_at_the_end(write, start):
    write("print('x' * 100_000)", "print('y' * 10)")

    process = start(preexec_fn=partial(limit_files, 50_000))
    log, _ = process.communicate()

    assert process.returncode == 1
    assert log.count("study.run-1.ipynb cannot be written now, the run goes on: ") == 1
    assert "yyyyyyyyyy\n" in log
    assert log.endswith("File too large.\n")
    assert "study.run-1.ipynb is not whole: " in log.splitlines()[-1]


@pytest.mark.parametrize(
    ("environment_variable", "value", "sentence"),
    [
        pytest.param("WORLD_SIZE", "2", "A notebook runs in one worker.", id="gang"),
        pytest.param("HOME", "/", "A notebook runs by nbclient and nbformat, which", id="library"),
    ],
)
def test_job_that_cannot_run_notebooks_says_so(monkeypatch, environment_variable, value, sentence):
    monkeypatch.setenv(environment_variable, value)
    if environment_variable == "HOME":
        monkeypatch.setattr(program, "find_spec", lambda name: None)

    with pytest.raises(InvalidRequest, match=sentence):
        program._run(["study.ipynb"])


@pytest.mark.parametrize(
    ("others", "index", "name"),
    [
        pytest.param({}, "", "run-1", id="first"),
        pytest.param({"run-1": "", "run-3": ""}, "", "run-2", id="next-free"),
        pytest.param({"run-1-3": "v/sweep"}, "", "run-2", id="beside-an-array"),
        pytest.param({"run-1": ""}, "3", "run-2-3", id="array-after-one"),
        pytest.param({"run-1-0": "v/sweep"}, "3", "run-1-3", id="same-array"),
        pytest.param(
            {"run-1-0": "v/other", "run-2-1": "v/sweep"}, "3", "run-2-3", id="other-array"
        ),
        pytest.param({"run-1-3": "v/sweep"}, "3", "run-2-3", id="array-of-the-same-name"),
    ],
)
def test_copy_takes_the_next_free_number_and_an_array_shares_one(tmp_path, others, index, name):
    notebook = tmp_path / "study.ipynb"
    notebook.touch()
    for other, array in others.items():
        content = {"metadata": {"runai": {"array": array}}}
        (tmp_path / f"study.{other}.ipynb").write_text(json.dumps(content))

    copy = NotebookCopy.claim(notebook, index=index, array="v/sweep")

    assert copy.path.name == f"study.{name}.ipynb"


@pytest.mark.parametrize(
    ("content", "is_own"),
    [
        pytest.param(None, True, id="missing"),
        pytest.param("", True, id="not-yet-written"),
        pytest.param('{"metadata": {"runai": {"workload": "v/exp"}}}', True, id="own"),
        pytest.param('{"metadata": {"runai": {"workload": "v/other"}}}', False, id="other-job"),
        pytest.param('{"cells": []}', False, id="other-notebook"),
    ],
)
def test_next_start_takes_no_file_of_another(tmp_path, content, is_own):
    notebook, earlier = tmp_path / "study.ipynb", tmp_path / "study.run-1.ipynb"
    notebook.touch()
    if content is not None:
        earlier.write_text(content)

    copy = NotebookCopy.again(notebook, earlier.name, workload="v/exp")

    assert copy == (NotebookCopy(earlier, copy.mode) if copy and is_own else None)
    assert (copy is not None) == is_own
    assert earlier.read_text() == content or content is None


def test_claimed_copy_has_the_names_of_its_job_at_once(tmp_path):
    notebook = tmp_path / "study.ipynb"
    notebook.touch()

    copy = NotebookCopy.claim(notebook, index="3", array="v/sweep", workload="v/sweep-3")

    facts = json.loads(copy.path.read_text())["metadata"]["runai"]
    assert facts == {"array": "v/sweep", "workload": "v/sweep-3"}


def test_notebook_without_cells_runs(start, tmp_path):
    (tmp_path / "study.ipynb").write_text('{"nbformat": 4, "nbformat_minor": 4, "metadata": {}}')

    process = start()
    log, _ = process.communicate()

    assert (process.returncode, log) == (0, f"{STARTED}\n")


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        pytest.param(["a\n", "b\n"], "a\nb\n", id="lines"),
        pytest.param(["1 %\r", "2 %\r", "3 %\n"], "3 %\n", id="returns"),
        pytest.param(["a\r\nb\r", "\n"], "a\nb\n", id="line-ends"),
        pytest.param(["a12", "\b\b34\n"], "a34\n", id="backspaces"),
        pytest.param(["\b\ba"], "a", id="backspaces-at-the-beginning"),
    ],
)
def test_printed_text_reads_as_on_a_terminal(parts, text):
    printed = ""
    for part in parts:
        printed = overwritten(printed, part)

    assert printed == text


@pytest.mark.parametrize("in_place", [True, False])
def test_text_beyond_the_bound_loses_its_oldest_lines_and_says_so(in_place):
    picture = {"output_type": "display_data"}
    lines = [f"line {number:05}\n" for number in range(20_000)]
    texts = ["".join(lines[:3000]), "".join(lines[3000:])]
    outputs: list[Any] = [{"output_type": "stream", "text": text} for text in texts]
    outputs.insert(1, picture)

    cut_text(outputs, "cut", in_place=in_place)

    assert outputs.index(picture) == int(in_place)
    kept = outputs[-1]["text"].splitlines()
    assert (kept[0], kept[-1]) == ("cut", "line 19999")
    assert kept[1].startswith("line ")
    assert sum(len(each.get("text", "")) for each in outputs) <= 150_010
