"""The image recipes agree with the package and the chart; the images cannot be built here."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest
import yaml

from runai.hub_service.limits import HOOK

ROOT = Path(__file__).parents[2]
RECIPES = sorted((ROOT / "images").glob("*.Dockerfile"))


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_image_recipe_installs_only_declared_extras(recipe: Path, metadata):
    extras = re.findall(r"\[([a-z,]+)\]", recipe.read_text())

    named = {name for group in extras for name in group.split(",")}
    assert named <= metadata["project"]["optional-dependencies"].keys()


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_image_recipe_pins_bases_skips_caches_and_drops_root(recipe: Path):
    """The checks of hadolint: pinned versions, no caches, a final user other than root."""
    lines = recipe.read_text().splitlines()
    base_images = [line.split()[1] for line in lines if line.startswith("FROM ")]
    users = [line.split()[1] for line in lines if line.startswith("USER ")]

    assert all(":" in image or image == "${BASE}" for image in base_images)
    assert all("--no-cache-dir" in line for line in lines if "pip " in line)
    assert not users or users[-1] == "1000:1000"
    assert not any(line.startswith(("ADD ", "MAINTAINER")) for line in lines)


def test_service_image_and_chart_start_the_same_command():
    recipe = (ROOT / "images/service.Dockerfile").read_text()
    (image_command,) = re.findall(r"^CMD (.*)$", recipe, re.MULTILINE)
    template = (ROOT / "helm/templates/service/deployment.yaml").read_text()
    (chart_command,) = re.findall(r"command: (.*)$", template, re.MULTILINE)

    assert json.loads(image_command) == yaml.safe_load(chart_command)
    assert importlib.util.find_spec(json.loads(image_command)[-1]) is not None
    assert "runAsUser: 1000" in template


def test_notebook_image_contains_the_memory_limit_hook():
    recipe = (ROOT / "images/notebook.Dockerfile").read_text()
    (hook_folder,) = re.findall(
        r"^COPY --from=wheel /src/(\S+) /opt/runai-limits$", recipe, re.MULTILINE
    )

    assert ROOT / hook_folder == Path(HOOK).resolve()
    assert "ENV PYTHONPATH=/opt/runai-limits" in recipe.splitlines()


def test_dockerignore_admits_all_sources_of_the_package(metadata, shipped):
    folders = {folder.relative_to(ROOT).parts[0] for folder in shipped.values()}
    admitted = {
        line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line[0] == "!"
    }

    assert folders <= admitted
    assert {"setup.py", "pyproject.toml", metadata["project"]["readme"], "LICENSE"} <= admitted
