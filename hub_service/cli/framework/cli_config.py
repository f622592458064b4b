"""What this computer remembers between commands: the hub, a token and a default project.

Changes `~/.config/runai/config.json`, whose form and place belong to `connection`.
"""

import os
from dataclasses import replace

from runai.hub_service.client.connection import Connection, config_path, read_config, write_config
from runai.hub_service.wire.errors import InvalidRequest, Unavailable


def inside_session() -> bool:
    """Tell whether the environment of a session says where the service is."""
    return bool(os.environ.get("RUNAI_API_URL") and os.environ.get("JUPYTERHUB_API_TOKEN"))


def use_project(name: str) -> None:
    """Keep a default project.

    Raises:
        InvalidRequest: a session's project is the default inside it.
        Unavailable: nobody has logged in here.
    """
    if inside_session() and (own := os.environ.get("RUNAI_PROJECT")):
        raise InvalidRequest(
            f"Inside this session the default is its own project, {own}.",
            hint=f"Name another one where you need it: -p {name}.",
        )
    kept = read_config(config_path())
    if kept is None:
        raise Unavailable(
            "A default project is remembered beside the login, and there is none.",
            hint="Run `runai login URL` first.",
            code="not_logged_in",
        )
    write_config(replace(kept, project=name), config_path())


def remember(url: str, token: str, ca: str | None) -> None:
    """Keep a login; the default project stays if it is the same service."""
    try:
        kept = read_config(config_path())
    except InvalidRequest:  # damaged: this login is its repair
        kept = None
    project = kept.project if kept and kept.url == url else None
    write_config(Connection(url, token, project, ca), config_path())


def forget() -> bool:
    """Delete what is remembered; tell whether there was anything."""
    try:
        config_path().unlink()
    except FileNotFoundError:
        return False
    return True
