"""Stored login and default project of this computer (`~/.config/runai/config.json`)."""

import os
from dataclasses import replace

from runai.hub_service.client.connection import Connection, config_path, read_config, write_config
from runai.hub_service.wire.errors import InvalidRequest, Unavailable


def inside_session() -> bool:
    """Return True if a session's environment has the service's address and a token."""
    return bool(os.environ.get("RUNAI_API_URL") and os.environ.get("JUPYTERHUB_API_TOKEN"))


def use_project(name: str) -> None:
    """Save a default project.

    Raises:
        InvalidRequest: inside a session, its own project is the default.
        Unavailable: there is no login on this computer.
    """
    if inside_session() and (own := os.environ.get("RUNAI_PROJECT")):
        raise InvalidRequest(
            f"Inside this session the default is its own project, {own}.",
            hint=f"Name another one where you need it: -p {name}.",
        )
    stored = read_config(config_path())
    if stored is None:
        raise Unavailable(
            "A default project is remembered beside the login, and there is none.",
            hint="Run `runai login URL` first.",
            code="not_logged_in",
        )
    write_config(replace(stored, project=name), config_path())


def remember(url: str, token: str, ca: str | None) -> None:
    """Save a login; keep the default project if the service is the same."""
    try:
        stored = read_config(config_path())
    except InvalidRequest:  # damaged: overwrite it
        stored = None
    project = stored.project if stored and stored.url == url else None
    write_config(Connection(url, token, project, ca), config_path())


def forget() -> bool:
    """Delete the stored login; return True if there was one."""
    try:
        config_path().unlink()
    except FileNotFoundError:
        return False
    return True
