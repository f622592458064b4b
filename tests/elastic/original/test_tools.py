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


def test_attribute_block_sets_attributes_and_restores_them_at_its_end():
    namespace = types.SimpleNamespace(old=1)
    with Attribute(namespace, ["old", "new"], [2, 3]):
        during = vars(namespace).copy()

    assert during == {"old": 2, "new": 3}
    assert vars(namespace) == {"old": 1}


def test_attribute_block_for_a_single_name_accepts_a_tuple_but_no_list():
    namespace = types.SimpleNamespace()
    with Attribute(namespace, "sizes", (1, 2)):
        assert namespace.sizes == (1, 2)

    with pytest.raises(ValueError, match="one value"):
        Attribute(namespace, "sizes", [1, 2])


def test_attribute_rename_moves_the_value():
    namespace = types.SimpleNamespace(old=1)
    runai.utils.attribute.rename(namespace, "old", "new")

    assert vars(namespace) == {"new": 1}


def test_file_lock_excludes_a_second_owner(tmp_path):
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


def test_function_hook_replaces_a_function_and_calls_the_original():
    module = types.SimpleNamespace(root=math.sqrt)
    hook = Hook(module, "root", lambda x: module.root(x) + 1)
    with hook:
        assert module.root(4) == 3  # the inner call is the original's

    assert module.root(4) == 2
    assert math.sqrt is hook.__original__


def test_function_hook_subclass_defines_the_replacement():
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
        pytest.param("GPU-1, GPU-2,-1,GPU-3", 2, id="two-before-an-invalid-index"),
    ],
)
def test_gpu_count_follows_cuda_visible_devices(visible, count, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    assert runai.utils.gpus.count() == count
    assert runai.utils.gpus.available() == (count > 0)


@pytest.mark.parametrize(
    ("program", "count"),
    [
        pytest.param("echo 'GPU 0: A (UUID: x)'; echo 'GPU 1: A (UUID: y)'", 2, id="two"),
        pytest.param("echo 'NVIDIA-SMI has failed'; exit 9", 0, id="no-driver"),
    ],
)
def test_gpu_count_defaults_to_the_gpus_of_the_driver(program, count, monkeypatch, tmp_path):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{program}\n", encoding="utf-8")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")

    assert count == runai.utils.gpus.count()


def test_runai_random_values_are_of_the_documented_types_and_ranges():
    random = runai.utils.random

    assert 10 <= random.number() <= 100
    assert random.string(7, "a") == "a" * 7
    assert 2 <= len(random.strings()) <= 10
    assert all(2 <= size <= 5 for size in random.shape())
    assert random.choice("b") == "b"


def test_import_of_runai_utils_configures_no_logging():
    program = "import logging, runai.utils; print(logging.getLogger('runai').handlers)"
    completed = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert (completed.stdout, completed.stderr) == ("[]\n", "")


def test_log_functions_write_to_the_runai_logger(caplog):
    with caplog.at_level(logging.DEBUG, logger="runai"):
        for level in ("debug", "info", "warning", "error", "critical"):
            getattr(runai.utils.log, level)("said %d", 1)

    assert caplog.messages == ["said 1"] * 5
    assert runai.utils.log.log is logging.getLogger("runai")
