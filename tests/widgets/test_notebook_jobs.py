"""A notebook as a job of a real service: progress, a pause, the same copy afterwards."""

from __future__ import annotations

import nbformat
from nbformat.v4 import new_code_cell, new_notebook

from runai.widgets import Job

WAITING = """
import os, time
while not os.path.exists("go"):
    time.sleep(0.02)
print("rate", rate)
"""


def test_paused_notebook_starts_again_and_ends_with_the_same_copy(notebook, folder, eventually):
    parameters = new_code_cell("rate = 1", metadata={"tags": ["parameters"]})
    content = new_notebook(cells=[parameters, new_code_cell(WAITING)])
    nbformat.write(content, folder / "study.ipynb")
    run = notebook("bob")

    run("%runai_submit study.ipynb --set rate=0.5 --name exp1 -g 1")

    job = Job.find("exp1")
    eventually(lambda: job.detail.progress and job.detail.progress.text == "cell 2 of 2")
    assert job.detail.progress is not None
    assert job.detail.progress.done == 0.5
    job.suspend()
    eventually(lambda: job.state == "suspended")
    paused = nbformat.read(folder / "study.run-1.ipynb", 4)
    assert paused.metadata.runai.state == "paused"
    assert paused.cells[2].outputs[-1].ename == "KeyboardInterrupt"

    (folder / "go").touch()
    job.resume()
    assert job.wait().state == "succeeded"

    assert [path.name for path in folder.glob("*.run-*")] == ["study.run-1.ipynb"]
    copy = nbformat.read(folder / "study.run-1.ipynb", 4)
    assert copy.cells[0].source == "*started again (2)*"
    assert copy.cells[3].outputs[0].text == "rate 0.5\n"
    lines = [*job.lines()]
    assert lines.count("cell 2 of 2") == 2
    assert "started again (2): study.ipynb runs as study.run-1.ipynb, kernel python3" in lines
    # The number of the copy is no checkpoint.
    assert "nothing new in its checkpoint directory" in str(job.describe())
