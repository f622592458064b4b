"""Tell setuptools which folder is which package; all else stands in pyproject.toml.

Folder `X/` is package `runai.X`, and so is `elastic/compat/X/` (docs/adr/0001). Root folders with
an `__init__.py` are shipped, and the examples; below them, every folder with programs.
"""

from pathlib import Path

from setuptools import setup

ROOTS = ["examples", *(path.parent.name for path in Path().glob("*/__init__.py"))]
FOLDERS = {path.parent for root in ROOTS for path in Path(root).rglob("*.py")}
PACKAGES = {
    ".".join(["runai", *folder.parts]).replace("elastic.compat.", ""): str(folder)
    for folder in sorted(FOLDERS)
    if all(map(str.isidentifier, folder.parts))  # not .ipynb_checkpoints
}
# The extension, where JupyterLab looks for it; an editable installation has no data files.
DATA = {
    "share/jupyter/labextensions/@jupyter-runai/lab": "lab/share/labextensions/@jupyter-runai/lab",
    "etc/jupyter/jupyter_server_config.d": "lab/etc/jupyter_server_config.d",
}
data_files = [(to, sorted(str(f) for f in Path(folder).iterdir())) for to, folder in DATA.items()]
setup(packages=[*PACKAGES], package_dir=PACKAGES, data_files=data_files)
