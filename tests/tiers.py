"""The tier of each test, and a report of the tiers and capabilities that did not run.

`--tiers check,test` chooses tiers (the Makefile does); without it every test runs. In order: the
marker `tier` decides, else a slow test is in `long` and one that needs a capability in `all`, else
its folder or file in PLACES decides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from capabilities import CAPABILITIES

TIERS = {
    "check": "the fast tests of pure functions",
    "test": "the service in process, and one test of each mechanism",
    "all": "every other test: on hubs, in browsers, on Kubernetes, in PyTorch, Keras, JAX (8 GB)",
    "long": "every boundary of the API, 500 seeds of faults, real crashes, fuzzing: hours",
}
"""Each tier's content. `make test-all` plays three, `make test` two, the remaining targets one."""

PLACES = {
    "check": (
        *("clusters/kubernetes", "contract", "input", "meta", "scheduler", "simulation"),
        *(
            "cli/test_doctor_platform_checks.py",
            "cli/test_login_refusals.py",
            "cli/test_program_argument.py",
        ),
        *("cli/test_schedule_and_up.py", "cli/test_command_list.py", "cli/test_tables.py"),
        *("cli/test_top_views.py", "cli/test_param_types.py"),
        *("widgets/test_colours.py", "widgets/test_gpu_cell.py", "widgets/test_live.py"),
        *("widgets/test_invalid_input.py", "widgets/test_page.py", "widgets/test_request.py"),
        *("widgets/test_state.py", "widgets/test_text.py", "widgets/test_timeline.py"),
    ),
    "all": (
        *("cli", "crashes", "elastic/original", "elastic/test_launcher.py"),
        *(
            "limits",
            "spawner/test_user_environment.py",
            "upgrades",
            "widgets/test_examples.py",
            "widgets/test_notebook_run.py",
            "widgets/test_train_numpy.py",
        ),
        *(
            "clusters/local/test_crash.py",
            "clusters/local/test_interrupted_deletion.py",
            "clusters/local/test_frozen_supervisor.py",
        ),
        *("clusters/local/test_hostile.py", "clusters/local/test_killed_writer.py"),
        *("clusters/local/test_many_files.py", "clusters/local/test_supervisor_full_disk.py"),
        *(
            "service/server/test_memory.py",
            "service/api/test_openapi.py",
            "service/server/test_operations.py",
        ),
        *("service/server/test_process.py",),
    ),
}
"""Folders and files of tests/ by tier; the longest path decides, the default is `test`."""

_TIER_OF = {place: tier for tier, places in PLACES.items() for place in places}

ANYWHERE = {"cc", "node"}
"""Capabilities that most machines have: a test that needs one stays in its folder's tier."""


def tier_of(item: pytest.Item) -> str:
    """Return the tier of a test.

    Raises:
        pytest.UsageError: its marker names an unknown tier.
    """
    if marked := item.get_closest_marker("tier"):
        if marked.args[0] not in TIERS:
            raise pytest.UsageError(f"{item.nodeid}: no tier {marked.args[0]!r}: {[*TIERS]}")
        return str(marked.args[0])
    if item.get_closest_marker("slow"):
        return "long"
    if any(item.get_closest_marker(name) for name in CAPABILITIES if name not in ANYWHERE):
        return "all"
    return _tier_of_path(item.path)


def _tier_of_path(path: Path) -> str:
    tests = Path(__file__).parent
    if not path.is_relative_to(tests):
        return "test"
    inside = path.relative_to(tests)
    places = (str(place) for place in (inside, *inside.parents))
    return next((_TIER_OF[place] for place in places if place in _TIER_OF), "test")


def chosen(option: str) -> frozenset[str]:
    """Return the tiers in the value of `--tiers`.

    Raises:
        pytest.UsageError: one of them is unknown.
    """
    names = frozenset(option.split(","))
    if unknown := sorted(names - TIERS.keys()):
        raise pytest.UsageError(f"--tiers names {', '.join(unknown)}; there is: {', '.join(TIERS)}")
    return names


def not_played(played: frozenset[str], skips: Iterable[str]) -> Iterator[str]:
    """Yield a line for each missing capability and for each tier that was not chosen.

    Args:
        played: the chosen tiers.
        skips: the reason of each skip; a missing capability's begins with its name and a colon.
    """
    why = Counter(reason for reason in skips if reason.partition(":")[0] in CAPABILITIES)
    for reason, tests in sorted(why.items()):
        yield f"{tests} {'test' if tests == 1 else 'tests'} of {reason}"
    for name, content in TIERS.items():
        if name not in played:
            yield f"{content}: make {name if name in {'check', 'test'} else f'test-{name}'}"
