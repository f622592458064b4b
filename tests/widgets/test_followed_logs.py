"""A followed log in a notebook shows unfinished lines, and saves their last state."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise
from typing import Any

import nbformat
import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from nbclient import NotebookClient

from runai.hub_service.wire.program_schemas import LogLine, MissingOutput
from runai.widgets.log_output import LONGEST, REDRAW_S, NotebookLog

PROGRESS_BAR_PROGRAM = r"""
import time
from pathlib import Path
print("begun")
for step in range(20):
    print(f"\r{step} %", end="", flush=True)
    time.sleep(0.05)
print("\r100 %\ndone")
"""
FOLLOWING_CELLS = """
%load_ext runai.widgets
%runai_submit bar.py --name bar
%runai_logs bar -f
"""


class Notebook(NotebookClient):
    """A notebook in a real kernel, with the messages of its outputs."""

    display_messages: list[tuple[datetime, dict[str, Any]]]

    def process_message(self, msg: Any, cell: Any, cell_index: int) -> Any:
        """Record a message of display data."""
        if "display_data" in msg["msg_type"]:
            self.display_messages.append((msg["header"]["date"], msg["content"]["data"]))
        return super().process_message(msg, cell, cell_index)


def test_followed_log_in_a_notebook_redraws_a_progress_bar_and_saves_the_last(folder, service):
    (folder / "bar.py").write_text(PROGRESS_BAR_PROGRAM)
    cells = [nbformat.v4.new_code_cell(line) for line in FOLLOWING_CELLS.strip().splitlines()]
    client = Notebook(nbformat.v4.new_notebook(cells=cells), kernel_name="python3")
    client.display_messages = []
    env = {"RUNAI_API_URL": service.url, "JUPYTERHUB_API_TOKEN": service.tokens["bob"]}

    client.execute(env=os.environ | env)

    saved_texts = [
        str(output.get("text") or output["data"]["text/plain"]) for output in cells[2].outputs
    ]
    assert "".join(f"{text.strip()}\n" for text in saved_texts) == "begun\n100 %\ndone\n"
    states = [data["text/plain"] for _, data in client.display_messages if "text/plain" in data]
    assert any(state != "100 %" and state.endswith(" %") for state in states)
    times = [at.timestamp() for at, data in client.display_messages if "text/plain" in data]
    assert min(after - at for at, after in pairwise(times)) > 0.8 * REDRAW_S  # timers vary


@pytest.fixture
def shell() -> Iterator[None]:
    InteractiveShell.instance()
    yield
    InteractiveShell.clear_instance()


def line(text: str, worker: int = 0, *, part: bool = False, gap: bool = False) -> LogLine:
    missing = MissingOutput() if gap else None
    return LogLine(worker=worker, attempt=1, text=text, part=part, missing=missing)


def saved_output(*lines: LogLine, several: bool = False) -> tuple[str, str]:
    """Return what a notebook saves: the printed lines, and the state of the unfinished ones."""
    with capture_output() as captured:
        NotebookLog(iter(lines), several=several).show()
    saved_texts = [output.data["text/plain"] for output in captured.outputs]
    return captured.stdout, saved_texts[-1] if saved_texts else ""


def test_complete_lines_of_a_followed_log_are_printed(shell):
    assert saved_output(line("1 %\r2 %"), line("as on Windows\r")) == ("2 %\nas on Windows\n", "")


def test_unfinished_line_of_a_followed_log_has_its_last_state(shell):
    assert saved_output(line("a"), line("1 %\r2", part=True), line(" %\r", part=True)) == (
        "a\n",
        "2 %",
    )


def test_unfinished_line_is_bounded_in_length(shell):
    _, state = saved_output(*(line("x" * 10_000, part=True) for _ in range(3)))

    assert state == "x" * LONGEST + f" … {3 * 10_000 - LONGEST:,} more characters"


def test_unfinished_line_of_each_worker_has_the_workers_prefix(shell):
    lines = [line("1 %", 0, part=True), line("load", 1, part=True), line("whole", 2)]

    output = saved_output(*lines, line("ing", 1, part=True), line("\r2 %", 0), several=True)

    assert output == ("[2] whole\n[0] 2 %\n", "[1] loading")


def test_log_line_with_a_missing_end_is_visible_beside_the_gap(shell):
    assert saved_output(line("half", part=True), line("… gone …", gap=True), line("b")) == (
        "… gone …\nb\n",
        "half",
    )
