"""Images for the nodes, made of a static busybox: as `docker save` writes them, without a Docker.

    rig.local/pause:1    waits for a signal: holds a pod's namespaces, or a device
    rig.local/runai:1    a shell; this machine's Python comes from the node's mounts

No image contains our code: `node` mounts it into every container, read-only. For `node`.
"""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PAUSE = "rig.local/pause:1"
RUNAI = "rig.local/runai:1"
PAUSE_COMMAND = ["/bin/sh", "-c", "trap 'exit 0' TERM; tail -f /dev/null & wait"]
FOLDERS = ("bin", "etc", "home", "root", "usr", "var")
LINKS = {"lib": "usr/lib", "lib64": "usr/lib64"}
PASSWD = "root:x:0:0:root:/root:/bin/sh\nrunai:x:1000:1000::/home:/bin/sh\n"


def write_images(folder: Path, busybox: Path, environment: Mapping[str, str]) -> list[Path]:
    """Write the images' archives; containers of the second have this environment."""
    layer = _layer(busybox)
    path = {"PATH": "/bin"}
    configs: dict[str, dict[str, Any]] = {
        PAUSE: {"Entrypoint": PAUSE_COMMAND, "Env": _env_lines(path)},
        RUNAI: {"Cmd": ["sh"], "Env": _env_lines({**path, **environment}), "WorkingDir": "/"},
    }
    archives = []
    for name, config in configs.items():
        archive = folder / f"{name.partition('/')[2].partition(':')[0]}.tar"
        archive.write_bytes(_image(name, layer, config))
        archives.append(archive)
    return archives


def _env_lines(environment: Mapping[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in environment.items()]


def _layer(busybox: Path) -> bytes:
    listed = subprocess.run([str(busybox), "--list"], capture_output=True, text=True, check=True)
    links = {f"bin/{name}": "busybox" for name in listed.stdout.split() if name != "busybox"}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for folder in FOLDERS:
            _add(tar, folder, type=tarfile.DIRTYPE)
        _add(tar, "tmp", type=tarfile.DIRTYPE, mode=0o1777)
        _add(tar, "bin/busybox", busybox.read_bytes())
        _add(tar, "etc/passwd", PASSWD.encode(), mode=0o644)
        for name, target in (LINKS | links).items():
            _add(tar, name, type=tarfile.SYMTYPE, linkname=target)
    return packed.getvalue()


def _image(name: str, layer: bytes, config: Mapping[str, Any]) -> bytes:
    digest = hashlib.sha256(layer).hexdigest()
    image_config = {
        "architecture": "amd64",
        "os": "linux",
        "config": dict(config),
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    config_json = json.dumps(image_config).encode()
    file = f"{hashlib.sha256(config_json).hexdigest()}.json"
    inside = f"{digest}/layer.tar"
    manifest = [{"Config": file, "RepoTags": [name], "Layers": [inside]}]
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        _add(tar, inside, layer)
        _add(tar, file, config_json)
        _add(tar, "manifest.json", json.dumps(manifest).encode())
    return packed.getvalue()


def _add(tar: tarfile.TarFile, name: str, content: bytes = b"", **attributes: Any) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), 0o755
    for key, value in attributes.items():
        setattr(entry, key, value)
    tar.addfile(entry, io.BytesIO(content))
