"""`runai.utils`: the small tools work as in 0.4.1, without side effects on import."""

from __future__ import annotations

import logging
import math
import subprocess
import sys
import threading
import types

import pytest

import runai.utils
from runai.utils import Attribute, Flock, Hook


def test_an_attribute_is_there_for_a_while_and_what_was_before_is_there_again():
    thing = types.SimpleNamespace(old=1)
    with Attribute(thing, ["old", "new"], [2, 3]):
        during = vars(thing).copy()

    assert [during, vars(thing)] == [{"old": 2, "new": 3}, {"old": 1}]


def test_an_attribute_may_be_a_list():
    thing = types.SimpleNamespace()
    with Attribute(thing, "sizes", (1, 2)):
        assert thing.sizes == (1, 2)

    with pytest.raises(ValueError, match="one value"):
        Attribute(thing, "sizes", [1, 2])


def test_an_attribute_is_renamed():
    thing = types.SimpleNamespace(old=1)
    runai.utils.attribute.rename(thing, "old", "new")

    assert vars(thing) == {"new": 1}


def test_a_lock_is_held_by_one_at_a_time(tmp_path):
    order, inside = [], threading.Event()

    def second():
        inside.wait()
        with Flock(tmp_path / "lock"):
            order.append("second")

    thread = threading.Thread(target=second)
    thread.start()
    with Flock(tmp_path / "lock"):
        inside.set()
        thread.join(0.05)  # time to acquire the lock, if possible
        order.append("first")
    thread.join()

    assert order == ["first", "second"]


def test_a_hook_stands_in_and_calls_the_original():
    module = types.SimpleNamespace(root=math.sqrt)
    hook = Hook(module, "root", lambda x: module.root(x) + 1)
    with hook:
        assert module.root(4) == 3  # the inner call is the original's

    assert module.root(4) == 2
    assert math.sqrt is hook.__original__


def test_a_class_may_say_what_its_hook_does():
    class Double(Hook):
        def __hook__(self, x):
            return 2 * self.__original__(x)

    module = types.SimpleNamespace(root=math.sqrt)
    with Double(module, "root"):
        assert module.root(4) == 4

    with pytest.raises(NotImplementedError, match="neither"), Hook(module, "root"):
        module.root(4)


@pytest.mark.parametrize(
    ("visible", "count"),
    [
        pytest.param("", 0, id="none"),
        pytest.param("0,1", 2, id="two"),
        pytest.param("GPU-1, GPU-2,-1,GPU-3", 2, id="up-to-the-first-that-is-none"),
    ],
)
def test_visible_gpus_are_counted(visible, count, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    assert (count, count > 0) == (runai.utils.gpus.count(), runai.utils.gpus.available())


@pytest.mark.parametrize(
    ("program", "count"),
    [
        pytest.param("echo 'GPU 0: A (UUID: x)'; echo 'GPU 1: A (UUID: y)'", 2, id="two"),
        pytest.param("echo 'NVIDIA-SMI has failed'; exit 9", 0, id="no-driver"),
    ],
)
def test_without_a_choice_the_drivers_gpus_are_counted(program, count, monkeypatch, tmp_path):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{program}\n", encoding="utf-8")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")

    assert count == runai.utils.gpus.count()


def test_random_things_are_of_the_documented_kind():
    random = runai.utils.random

    assert 10 <= random.number() <= 100
    assert (7, {"a"}) == (len(random.string(7, "a")), set(random.string(7, "a")))
    assert 2 <= len(random.strings()) <= 10
    assert all(2 <= size <= 5 for size in random.shape())
    assert random.choice("b") == "b"


def test_importing_the_tools_configures_no_logging():
    program = "import logging, runai.utils; print(logging.getLogger('runai').handlers)"
    shown = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert (shown.stdout, shown.stderr) == ("[]\n", "")


def test_the_log_is_the_logger_runai(caplog):
    with caplog.at_level(logging.DEBUG, logger="runai"):
        for level in ("debug", "info", "warning", "error", "critical"):
            getattr(runai.utils.log, level)("said %d", 1)

    assert caplog.messages == ["said 1"] * 5
    assert runai.utils.log.log is logging.getLogger("runai")
