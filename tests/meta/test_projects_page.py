"""The page about projects tells the truth: its file can be applied, its table has every field."""

from __future__ import annotations

import re
from pathlib import Path

from runai.hub_service.api.schemas import ProjectPut
from runai.hub_service.projects_file import read_projects

PAGE = Path(__file__).parents[2] / "docs" / "projects.md"


def test_the_file_on_the_page_is_a_projects_file(tmp_path):
    (block,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    file = tmp_path / "projects.yaml"
    file.write_text(block)

    read = [(spec.name, spec.parent) for spec in read_projects(file)]

    assert sorted(read) == [("archive", None), ("vision", None), ("vision-students", "vision")]


def test_every_field_of_a_project_is_explained():
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    explained = {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}

    assert explained == set(ProjectPut.model_fields)
