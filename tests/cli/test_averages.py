"""`runai usage`: averages over time by project and user."""

from __future__ import annotations

import json

import pytest

SLEEP = ("--", "sleep", "600")


@pytest.mark.parametrize(("what", "name"), [("projects", "vision"), ("users", "bob")])
def test_averages_over_time_are_shown_by_project_and_user(bob, eventually, what, name):
    bob("submit", "a", "-g", "1", *SLEEP)

    def told() -> list[str]:
        lines = bob("usage", what, "--since", "2h").stdout.splitlines()
        assert len(lines) > 1, "nothing is counted yet"
        assert lines[0].split() == ["NAME", "ALLOCATED", "UTIL", "GPU-HOURS", "USED", "IDLE"]
        return [str(word) for word in lines[1].split()]

    assert eventually(told)[0] == name
    found = {one["name"]: one for one in json.loads(bob("usage", what, "-o", "json").stdout)}
    assert found[name]["allocated_gpu_hours"] > 0
    assert "is no length of time" in bob("usage", what, "--since", "soon").stderr
