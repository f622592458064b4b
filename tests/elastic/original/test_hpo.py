"""`runai.hpo`: experiments are shared, and a paused experiment is continued."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections import Counter
from typing import Any

import pytest
import yaml

from runai import hpo
from runai.hpo import experiments
from runai.hpo.experiments import HpoError

GRID: dict[str, list[Any]] = {"lr": [0.1, 0.01], "layers": [1, 2, 3]}


@pytest.fixture(autouse=True)
def reset_search(monkeypatch):
    """Reset this process to have joined no search; restore its signal handlers afterwards."""
    monkeypatch.setattr(experiments, "_search", None)
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def read_search_file(directory):
    return yaml.safe_load((directory / "runai.yaml").read_text(encoding="utf-8"))


def test_grid_search_picks_each_configuration_once(tmp_path):
    hpo.init(tmp_path)
    picked = [hpo.pick(GRID, hpo.Strategy.GridSearch) for _ in range(6)]

    assert len({tuple(sorted(config.items())) for config in picked}) == 6  # 2 rates, 3 depths
    with pytest.raises(HpoError, match="All 6 experiments"):
        hpo.pick(GRID, hpo.Strategy.GridSearch)


def test_random_search_picks_any_number_of_configurations(tmp_path):
    hpo.init(tmp_path, "deep")
    for _ in range(9):
        config = hpo.pick(GRID, hpo.Strategy.RandomSearch)

        assert all(config[name] in values for name, values in GRID.items())
    ids = [experiment["id"] for experiment in read_search_file(tmp_path / "deep")["experiments"]]
    assert list(range(1, 10)) == ids


def test_hpo_reports_are_saved_with_their_experiment(tmp_path):
    class Tensor:
        def item(self):
            return 0.5

    hpo.init(tmp_path)
    hpo.pick(GRID, hpo.Strategy.GridSearch)
    hpo.report(epoch=0, metrics={"loss": Tensor(), "acc": 0.25})
    first, second, *_ = read_search_file(tmp_path)["experiments"]

    assert first["reports"][0]["epoch"] == 0
    assert first["reports"][0]["metrics"] == {"loss": 0.5, "acc": 0.25}
    assert "reports" not in second


def test_hpo_search_file_of_the_original_library_is_continued(tmp_path):
    (tmp_path / "runai.yaml").write_text(
        textwrap.dedent(
            """
            creationTime: 01/01/2021 10:00:00
            experiments:
            - config: {lr: 0.1}
              id: 1
              modificationTime: 01/01/2021 10:00:00
              status: assigned
            - config: {lr: 0.01}
              id: 2
              status: unassigned
            - config: {lr: 0.001}
              id: 3
              status: preempted
            """
        ),
        encoding="utf-8",
    )
    hpo.init(tmp_path)

    assert [hpo.pick({"lr": [1]}, hpo.Strategy.GridSearch) for _ in range(2)] == [
        {"lr": 0.001},
        {"lr": 0.01},
    ]


EXPERIMENT_PROGRAM = """
import os, signal, sys
from runai import hpo
signal.signal(signal.SIGTERM, lambda *_: print("saved", flush=True) or sys.exit(9))
hpo.init(sys.argv[1])
hpo.init(sys.argv[1])  # once more: the handler before ours is still called once
print(hpo.pick({"lr": [0.1, 0.2]}, hpo.Strategy.GridSearch), flush=True)
os.kill(os.getpid(), signal.SIGTERM)
"""


def test_hpo_experiment_paused_by_sigterm_calls_the_old_handler_and_is_next(tmp_path):
    first = subprocess.run(
        [sys.executable, "-c", EXPERIMENT_PROGRAM, tmp_path],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    hpo.init(tmp_path)

    assert first.stdout.splitlines() == ["{'lr': 0.1}", "saved"]
    assert first.returncode == 9
    assert [e["status"] for e in read_search_file(tmp_path)["experiments"]] == [
        "preempted",
        "unassigned",
    ]
    assert hpo.pick({"lr": [0.1, 0.2]}, hpo.Strategy.RandomSearch) == {"lr": 0.1}


FORKING_PROGRAM = """
import os, signal, sys
from runai import hpo
hpo.init(sys.argv[1])
hpo.pick({"lr": [0.1, 0.2]}, hpo.Strategy.GridSearch)
end, start = os.pipe()
if not (child := os.fork()):
    os.write(start, b"1")
    signal.pause()
os.read(end, 1)
os.kill(child, signal.SIGTERM)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_terminated_child_process_does_not_pause_its_hpo_experiment(tmp_path):
    completed = subprocess.run(
        [sys.executable, "-c", FORKING_PROGRAM, tmp_path],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    assert completed.stdout == "-15\n"
    assert [e["status"] for e in read_search_file(tmp_path)["experiments"]] == [
        "assigned",
        "unassigned",
    ]


def test_sigterm_during_a_write_of_the_hpo_file_waits_until_it_is_complete(tmp_path):
    hpo.init(tmp_path)
    hpo.pick(GRID, hpo.Strategy.GridSearch)

    def write():
        with experiments._joined_search().changed() as content:
            os.kill(os.getpid(), signal.SIGTERM)  # its handler would wait for this lock
            content["note"] = "whole"

    with pytest.raises(SystemExit):
        write()

    assert read_search_file(tmp_path)["note"] == "whole"
    assert read_search_file(tmp_path)["experiments"][0]["status"] == "preempted"


def test_many_processes_pick_different_experiments(tmp_path):
    program = (
        "import sys; from runai import hpo; hpo.init(sys.argv[1]);"
        "print(hpo.pick({'lr': list(range(8))}, hpo.Strategy.GridSearch)['lr'])"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", program, tmp_path], stdout=subprocess.PIPE)
        for _ in range(4)
    ]
    picked = Counter(process.communicate(timeout=60)[0].decode().strip() for process in processes)

    assert picked == {"0": 1, "1": 1, "2": 1, "3": 1}


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        pytest.param(lambda: hpo.init("/nowhere"), FileNotFoundError, "/nowhere", id="no-root"),
        pytest.param(
            lambda: hpo.pick(GRID, hpo.Strategy.GridSearch), HpoError, "hpo.init", id="not-joined"
        ),
        pytest.param(
            lambda: hpo.pick(GRID, "grid"),  # type: ignore[arg-type] # what is tested
            ValueError,
            "not 'grid'",
            id="no-strategy",
        ),
    ],
)
def test_hpo_error_names_the_missing_root_init_or_strategy(call, error, text):
    with pytest.raises(error, match=text):
        call()
