"""The suite's own promises: a missing capability skips with a reason, or fails where required."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tiers
from capabilities import required

TESTS = Path(__file__).parents[1]

# A suite in miniature: the real conftest.py with a missing capability.
WITHOUT_BROWSER = """
import capabilities, pytest
capabilities.CAPABILITIES = {"browser": lambda: "no Chromium found"}
"""
SUITE_WITH_BROWSER_TESTS = """
import pytest
@pytest.mark.browser
def test_clicks(): ...
@pytest.mark.browser
def test_skips_itself(): pytest.skip("not today")
def test_plain(): ...
"""


@pytest.fixture
def run_suite(tmp_path):
    (tmp_path / "pytest.ini").write_text(
        f"[pytest]\nmarkers =\n  browser: x\n  tier: x\n  xdist_group: x\npythonpath = {TESTS}\n",
        encoding="utf-8",
    )
    conftest = (TESTS / "conftest.py").read_text(encoding="utf-8")
    future = "from __future__ import annotations\n"
    (tmp_path / "conftest.py").write_text(
        conftest.replace(future, future + WITHOUT_BROWSER), encoding="utf-8"
    )

    def run(require: str, *options: str, suite: str = SUITE_WITH_BROWSER_TESTS) -> str:
        (tmp_path / "test_case.py").write_text(suite, encoding="utf-8")
        result = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-rsf", "-p", "no:cacheprovider", *options, "."],
            cwd=tmp_path,
            env=os.environ | {"RUNAI_REQUIRE": require, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        return result.stdout + result.stderr

    return run


def test_missing_capability_skips_its_tests_with_the_reason(run_suite):
    output = run_suite("")

    assert "1 passed, 2 skipped" in output
    assert "browser: no Chromium found" in output


def test_skip_of_a_required_capability_is_a_failure(run_suite):
    output = run_suite("browser")

    assert "1 passed, 2 errors" in output
    assert "RUNAI_REQUIRE=browser forbids this skip: Skipped: browser: no Chromium found" in output


def test_misspelt_capability_in_runai_require_is_refused(run_suite):
    assert "RUNAI_REQUIRE names brwoser; there is: browser" in run_suite("brwoser")


@pytest.mark.tier("all")  # where frameworks are installed; `make test` collects without them anyway
def test_suite_of_tests_is_collected_without_a_deep_learning_framework(tmp_path):
    plugin = "import sys\nsys.modules |= dict.fromkeys(('jax', 'keras', 'tensorflow', 'torch'))\n"
    (tmp_path / "without_frameworks.py").write_text(plugin, encoding="utf-8")

    result = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "without_frameworks"],
        cwd=TESTS.parent,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert result.returncode == 0, result.stdout[-2000:]


SUITE_WITH_TIERS = """
import pytest
@pytest.mark.tier("check")
@pytest.mark.browser
def test_prints(): ...
@pytest.mark.browser
def test_clicks(): ...
def test_plain(): ...
"""


@pytest.mark.parametrize(
    ("chosen", "summary"),
    [
        ("check,test", "1 passed, 1 skipped, 1 deselected"),
        ("all,long", "2 deselected"),
    ],
)
def test_tiers_option_runs_only_the_tests_of_these_tiers(run_suite, chosen, summary):
    output = run_suite("", "--tiers", chosen, suite=SUITE_WITH_TIERS)

    assert summary in output


def test_pytest_report_names_skipped_tests_and_the_commands_that_run_them(run_suite):
    output = run_suite("", "--tiers", "check,test", suite=SUITE_WITH_TIERS)

    assert "1 test of browser: no Chromium found" in output
    assert ": make test-all" in output
    assert ": make test-long" in output


def test_every_path_of_a_test_tier_exists():
    paths = [TESTS / place for places in tiers.PLACES.values() for place in places]

    assert [str(path) for path in paths if not path.exists()] == []


def test_misspelt_tier_is_refused(run_suite):
    assert "--tiers names chekc; there is: check, test, all, long" in run_suite("", "--tiers=chekc")


def test_runai_require_is_parsed_with_blanks_and_commas(monkeypatch):
    monkeypatch.setenv("RUNAI_REQUIRE", " browser, hub,")

    assert {"browser", "hub"} == required()


def test_eventually_returns_the_first_truthy_value(eventually):
    outcomes = iter([0, None, "ready"])

    assert eventually(lambda: next(outcomes)) == "ready"


def test_eventually_names_what_it_waited_for(eventually):
    with pytest.raises(AssertionError, match="not within 0 s: the job runs; last: "):
        eventually(lambda: _refuse("queued"), within=0, what="the job runs")


async def test_eventually_async_awaits_coroutines(eventually_async):
    outcomes = iter([False, True])

    async def condition() -> bool:
        await asyncio.sleep(0)
        return next(outcomes)

    assert await eventually_async(condition)


def _refuse(state: str) -> bool:
    assert state == "running", state
    return True
