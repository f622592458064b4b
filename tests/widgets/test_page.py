"""The page's scripts: their own tests under node, and the one module made of them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from runai.widgets.panel import FILES, Panel, page_script

ROOT = Path(__file__).parents[2]


@pytest.mark.node
@pytest.mark.parametrize("script", ["widgets/page", "widgets/call", "widgets/logs", "lab/pages"])
def test_page_scripts_pass_their_node_tests(script, tmp_path):
    for folder, pattern in (
        ("widgets", "*.js"),
        ("hub_service/api/pages", "*.js"),
        ("lab/page", "*.js"),
        ("tests/widgets", "*.mjs"),
        ("tests/lab", "*.mjs"),
    ):
        (tmp_path / folder).mkdir(parents=True)
        for file in (ROOT / folder).glob(pattern):
            shutil.copy(file, tmp_path / folder)
    for file in (ROOT / "widgets").glob("*.js"):  # the extension is served beside the widget
        shutil.copy(file, tmp_path / "lab/page")
    # Without it, older versions of node parse `.js` as a CommonJS module.
    (tmp_path / "package.json").write_text('{"type": "module"}')

    process = subprocess.run(
        ["node", "--test", str(tmp_path / f"tests/{script}.test.mjs")],
        capture_output=True,
        text=True,
        check=False,
    )

    assert process.returncode == 0, process.stdout + process.stderr


@pytest.mark.node
def test_front_end_module_loads_alone_and_exports_render(tmp_path):
    module = tmp_path / "panel.mjs"
    module.write_text(page_script(ROOT / "widgets"))

    process = subprocess.run(
        ["node", "--eval", f"import('{module}').then((m) => console.log(Object.keys(m), m))"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert process.stderr == ""
    assert re.sub(r"\s+", " ", process.stdout).startswith("[ 'default' ]")
    assert "[Function: render]" in process.stdout


def test_front_end_module_includes_all_widget_scripts():
    assert sorted(path.name for path in (ROOT / "widgets").glob("*.js")) == sorted(FILES)


def test_panel_widget_has_the_page_script_and_style():
    assert Panel._esm == page_script(ROOT / "widgets")
    assert "runai" in str(Panel._css)
