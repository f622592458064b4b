"""Routes, variables, decisions and projects are documented, and links have targets.

tests/cli compares the page of the commands with the code.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys

import pytest

from runai.hub_service.model.admin_files import read_projects
from runai.hub_service.wire.schemas import ProjectPut


@pytest.fixture(scope="module")
def reference(checkout):
    return (checkout / "docs/reference.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def pages(checkout):
    return [checkout / "README.md", *sorted((checkout / "docs").rglob("*.md"))]


@pytest.fixture(scope="module")
def reference_script(checkout):
    """Return the script that reads the routes from the code, as a module."""
    return load_script(checkout / "docs/write_reference.py")


def load_script(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses look up their module
    spec.loader.exec_module(module)
    return module


def test_every_api_route_is_documented_with_its_description(reference_script, reference):
    documented = dict(re.findall(r"^\| `([A-Z]+ api/\S+)` \| (.+) \|$", reference, re.MULTILINE))

    assert documented == dict(reference_script.routes()), "run: make docs"


@pytest.mark.parametrize(
    ("generator", "page"),
    [
        pytest.param("write_permissions", "permissions", id="permissions by role"),
    ],
)
def test_generated_permissions_page_is_up_to_date(checkout, generator, page):
    generated_page = subprocess.run(
        [sys.executable, "-c", f"import {generator}; print({generator}.page(), end='')"],
        cwd=checkout / "docs",
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=True,
    ).stdout

    assert (checkout / f"docs/{page}.md").read_text(encoding="utf-8") == generated_page, (
        "run: make docs"
    )


def test_schema_of_gpujob_is_that_of_the_stored_request(checkout):
    writer = load_script(checkout / "docs/write_gpujob_schema.py")
    text = (checkout / "helm/crds/gpujobs.yaml").read_text()

    assert writer.with_schema(text) == text, "make docs writes it"


def test_documented_scheduler_play_equals_the_decisions_of_the_scheduler(checkout):
    play = load_script(checkout / "docs/write_play.py")

    assert play.WRITTEN.read_text(encoding="utf-8") == play.text(), "run: make docs"


def test_every_environment_variable_is_documented(folders, reference):
    variables = {
        name
        for folder in folders.values()
        for path in folder.rglob("*.py")
        for name in re.findall(r"\bRUNAI_[A-Z_]*[A-Z]\b", path.read_text(encoding="utf-8"))
    }

    assert sorted(name for name in variables if f"`{name}`" not in reference) == []


def test_every_decision_record_is_in_the_index(checkout):
    folder = checkout / "docs/adr"
    index = re.findall(r"\((\d{4}-[a-z0-9-]+\.md)\)", (folder / "README.md").read_text())

    assert index == sorted(path.name for path in folder.glob("[0-9]*.md"))


def test_every_decision_record_has_a_status_and_the_same_sections(checkout):
    sections = ["Context", "Decision", "Consequences", "Considered"]
    superseded = re.compile(r"superseded by \[(\d{4})\]\(\1-")
    for path in sorted((checkout / "docs/adr").glob("[0-9]*.md")):
        text = path.read_text(encoding="utf-8")
        ((number, status),) = re.findall(r"\A# (\d{4}): .*\n\n\*\*Status:\*\* (.*)", text)
        headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
        successor = superseded.match(status)

        assert path.name.startswith(f"{number}-")
        assert headings == ([] if successor else sections), path.name
        assert successor or status.startswith("accepted"), path.name
        if successor:
            (new_record,) = path.parent.glob(f"{successor[1]}-*.md")
            assert f"supersedes [{number}]" in new_record.read_text(encoding="utf-8")


def test_every_link_between_documentation_pages_has_an_existing_target(pages):
    dead_links = sorted(
        f"{page.name}: {target}"
        for page in pages
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
        if "://" not in target and not (page.parent / target).exists()
    )

    assert dead_links == []


def test_every_documentation_page_is_listed_once_in_the_site_contents(checkout):
    docs = checkout / "docs"
    entries = [
        (page.parent / entry).relative_to(docs).with_suffix(".md").as_posix()
        for page in docs.rglob("*.md")
        for tree in re.findall(r"```\{toctree\}\n(.*?)```", page.read_text(), re.DOTALL)
        for entry in re.findall(r"^[\w/]+$", tree, re.MULTILINE)
    ]
    expected = {path.relative_to(docs).as_posix() for path in docs.rglob("*.md")} - {"index.md"}
    developer_pages = {name for name in expected if name.startswith(("adr/", "dev/"))}

    assert sorted(entries) == sorted(expected - developer_pages)


def projects_page(checkout):
    return (checkout / "docs/projects.md").read_text(encoding="utf-8")


def test_example_on_the_projects_page_is_a_valid_projects_file(checkout, tmp_path):
    (block,) = re.findall(r"```yaml\n(.*?)```", projects_page(checkout), re.DOTALL)
    file = tmp_path / "projects.yaml"
    file.write_text(block)

    parents = [(spec.name, spec.parent) for spec in read_projects(file)]

    assert sorted(parents) == [("archive", None), ("vision", None), ("vision-students", "vision")]


def test_every_project_field_is_explained_on_the_projects_page(checkout):
    rows = [line for line in projects_page(checkout).splitlines() if line.startswith("| `")]
    fields = {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}

    assert fields == set(ProjectPut.model_fields)
