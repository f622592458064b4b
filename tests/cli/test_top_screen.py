"""`runai top` live, on a real service: its tables and its keys."""

from __future__ import annotations

import pytest
from textual.widgets import DataTable, Static

from runai.hub_service.cli.output.top_screen import TopScreen
from runai.hub_service.cli.output.top_views import TopOptions
from runai.hub_service.client import AsyncClient

SLEEP = ("--", "sleep", "600")
SIZE = (120, 30)  # columns and rows


@pytest.fixture
def bob(as_user):
    return as_user("bob")


@pytest.fixture
def make_screen(service):
    """Return a function that opens a user's screen."""

    def make(options, user="bob"):
        return TopScreen(AsyncClient(service.url, service.tokens[user]), options)

    return make


def static_text(screen, widget):
    return str(screen.query_one(widget, Static).render())


def table_rows(screen):
    table = screen.query_one(DataTable)
    return [[str(cell) for cell in table.get_row_at(row)] for row in range(table.row_count)]


def headings(screen):
    return [str(column.label) for column in screen.query_one(DataTable).ordered_columns]


async def wait_until(pilot, condition):
    """Run the screen until a condition holds; the test's time limit ends it otherwise."""
    while not condition():
        await pilot.pause(0.02)


async def test_top_follows_workloads_and_shows_waiting_reasons(bob, make_screen):
    top = make_screen(TopOptions(view="jobs"))
    async with top.run_test(size=SIZE) as pilot:
        await wait_until(
            pilot, lambda: "0 of 5 GPUs allocated (0%)" in static_text(top, "#headline")
        )
        await wait_until(
            pilot, lambda: static_text(top, "#beside") == "0 of 40 simulated CPUs requested"
        )
        assert static_text(top, "#empty").startswith("Nothing holds GPUs or waits for any.")

        bob("submit", "all", "-g", "5", *SLEEP)
        bob("submit", "more", "-g", "1", *SLEEP)

        await wait_until(
            pilot, lambda: "5 of 5 GPUs allocated (100%)" in static_text(top, "#headline")
        )
        await wait_until(pilot, lambda: len(table_rows(top)) == 2)
        await wait_until(pilot, lambda: table_rows(top)[1][-1])
        await wait_until(pilot, lambda: table_rows(top)[0][3] == "running")  # "starting" until then
        own = "over quota, may be paused at any time · vision 5 of 2.5 · 1 waiting"
        await wait_until(pilot, lambda: own in static_text(top, "#own"))
        assert static_text(top, "#own").startswith("bob: 5 GPUs · ")
        running, waiting = table_rows(top)
        assert running[:5] == ["all", "vision", "bob", "running", "5/5"]
        assert waiting[:5] == ["more", "vision", "bob", "queued", "0/1"]
        assert "place 1 in the queue" in waiting[-1]
        await wait_until(pilot, lambda: "on average" in static_text(top, "#average"))
        assert not top.query_one("#empty").display


async def test_top_keys_change_view_and_order_and_the_cursor_remains_on_its_workload(
    bob, make_screen
):
    for name in ("a", "b", "c"):
        bob("submit", name, "-g", "1", *SLEEP)
    top = make_screen(TopOptions())
    async with top.run_test(size=SIZE) as pilot:
        await wait_until(pilot, lambda: len(table_rows(top)) == 5)  # the node's GPUs
        assert headings(top)[0] == "NODE"

        await pilot.press("p")
        await wait_until(pilot, lambda: headings(top)[1] == "ALLOCATED")
        # A user sees each project's shares, but no jobs of other users.
        assert [row[0] for row in table_rows(top)] == ["vision", "nlp", "capped"]

        await pilot.press("j", "s")
        await wait_until(pilot, lambda: headings(top)[0] == "NAME ▲")
        await wait_until(pilot, lambda: [row[0] for row in table_rows(top)] == ["a", "b", "c"])
        await pilot.press("r")
        await wait_until(pilot, lambda: [row[0] for row in table_rows(top)] == ["c", "b", "a"])
        assert headings(top)[0] == "NAME ▼"
        assert top.query_one(DataTable).cursor_row == 2  # still on job a

        await pilot.press("i")
        await wait_until(pilot, lambda: static_text(top, "#empty") == "No GPU is idle.")
        await pilot.press("q")
    assert top.failed is None


async def test_enter_opens_the_facts_of_a_job_and_its_wait(bob, make_screen):
    bob("submit", "all", "-g", "5", *SLEEP)
    bob("submit", "more", "-g", "1", *SLEEP)
    top = make_screen(TopOptions(view="jobs"))
    async with top.run_test(size=SIZE) as pilot:
        await wait_until(pilot, lambda: len(table_rows(top)) == 2)
        await pilot.press("down", "enter")
        await wait_until(pilot, lambda: top.screen.query("#lines"))
        await wait_until(pilot, lambda: "Command:" in static_text(top.screen, "#lines"))
        lines = static_text(top.screen, "#lines").splitlines()
        assert [line.split()[1] for line in lines if line.startswith("Name:")] == ["more"]
        assert any(line.startswith("Held by:") and "vision/all 5" in line for line in lines)
        await pilot.press("escape")
        await wait_until(pilot, lambda: not top.screen.query("#lines"))
        assert top.is_running


async def test_top_displays_more_columns_on_a_wide_terminal(bob, make_screen):
    top = make_screen(TopOptions(view="jobs"))
    async with top.run_test(size=(180, 30)) as pilot:
        await wait_until(pilot, lambda: "AVG UTIL" in headings(top))
        await pilot.resize_terminal(90, 30)
        await wait_until(pilot, lambda: headings(top) and "AVG UTIL" not in headings(top))


async def test_top_ends_with_the_reason_when_its_token_is_refused(service):
    top = TopScreen(AsyncClient(service.url, "stale"), TopOptions())
    async with top.run_test(size=SIZE) as pilot:
        await wait_until(pilot, lambda: top.failed is not None)

    assert top.failed is not None
    assert "token" in top.failed.message


def test_top_once_prints_a_sorted_table_and_refuses_an_unknown_column(bob):
    bob("submit", "exp1", "-g", "1", *SLEEP)

    assert bob("top", "jobs", "--once").stdout.splitlines()[0].split()[:4] == [
        *("NAME", "PROJECT", "USER", "STATE")
    ]
    order = ("top", "nodes", "--once", "--sort", "gpu")
    ordered, reversed_ = bob(*order).stdout, bob(*order, "--reverse").stdout
    assert ordered.splitlines()[1] != reversed_.splitlines()[1]
    refused = bob("top", "jobs", "--sort", "colour")
    assert refused.exit_code == 1
    assert "There is no column 'colour'" in refused.stderr
