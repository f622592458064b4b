"""A user's Python environment for tests: a wheel without a download, and kernels that run in it."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import start_new_kernel

PATIENCE_S = 120


def wheel(folder: Path, name: str = "tiny", version: str = "1.0", text: str = "") -> Path:
    """Return a new wheel of one module, whose program is called as the module."""
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": text or f"version = {version!r}\ndef main():\n    print(version)\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": f"[console_scripts]\n{name} = {name}:main\n",
        f"{name}-{version}.data/data/share/jupyter/labextensions/{name}/package.json": "{}",
    }
    listed = "".join(f"{each},,\n" for each in (*files, f"{info}/RECORD"))
    with zipfile.ZipFile(path, "w") as archive:
        for each, content in (files | {f"{info}/RECORD": listed}).items():
            archive.writestr(each, content)
    return path


class Kernel:
    """A running kernel."""

    def __init__(self, client: BlockingKernelClient) -> None:
        self._client = client

    def __call__(self, cell: str) -> str:
        """Run a cell; return what it prints, on both streams, with the message of an error."""
        printed: list[str] = []

        def collect(message: dict) -> None:
            content = message["content"]
            printed.append(content.get("text", "") + content.get("evalue", ""))

        self._client.execute_interactive(
            cell, allow_stdin=False, output_hook=collect, timeout=PATIENCE_S
        )
        return "".join(printed).replace("\r\n", "\n")  # of a terminal, for `!`


@contextmanager
def kernel(name: str = "python3") -> Iterator[Kernel]:
    """Run a kernel, as a Jupyter server with this environment does."""
    manager, client = start_new_kernel(kernel_name=name, startup_timeout=PATIENCE_S)
    try:
        yield Kernel(client)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
