"""Settings that the platform cannot live without, completed after the admin's own file.

An assignment in `jupyterhub_config.py` replaces a whole list. The platform's services, roles,
scopes and variables are added to it by name. The words of the file about them stay.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from traitlets.config import Config

from runai.hub_service.wire.errors import InvalidRequest

SESSIONS = ("Spawner", "RunaiLocalSpawner")
"""Sections of the settings of servers, the general one first."""


@dataclass
class Completion:
    """The settings that complete the admin's file, with a sentence for each addition."""

    config: Any = field(default_factory=Config)
    added: list[str] = field(default_factory=list)


def completed(ours: Config, chosen: Config) -> Completion:
    """Return the settings of the hub that complete those chosen so far.

    Raises:
        InvalidRequest: a setting has a form that cannot be completed.
    """
    done = Completion()
    ours_hub: Any = ours.JupyterHub
    hub = chosen.JupyterHub
    done.config.JupyterHub.services = _by_name(
        done, "services", ours_hub.services, hub.get("services", []), ("environment",), ()
    )
    done.config.JupyterHub.load_roles = _by_name(
        done, "load_roles", ours_hub.load_roles, hub.get("load_roles", []), (), ("scopes",)
    )
    done.config.JupyterHub.custom_scopes = _mapping(
        done, "JupyterHub.custom_scopes", ours_hub.custom_scopes, hub.get("custom_scopes", {})
    )
    needed: Any = ours.Spawner
    for section in SESSIONS:
        name, given = f"{section}.server_token_scopes", chosen[section].get("server_token_scopes")
        if given is not None:
            scopes = _list(name, given)
            missing = [scope for scope in needed.server_token_scopes if scope not in scopes]
            if missing:
                done.added.append(f"{', '.join(missing)} to c.{name}")
            done.config[section].server_token_scopes = [*scopes, *missing]
        given = chosen[section].get("environment")
        if given is not None:
            name = f"{section}.environment"
            done.config[section].environment = _mapping(done, name, needed.environment, given)
    return done


def _by_name(
    done: Completion,
    setting: str,
    ours: Sequence[Mapping[str, Any]],
    given: object,
    mappings: Sequence[str],
    lists: Sequence[str],
) -> list[dict[str, Any]]:
    """Return the given entries, with ours of the same name merged in and the missing ones added."""
    name = f"JupyterHub.{setting}"
    entries = [dict(_mapping_of(name, entry)) for entry in _list(name, given)]
    found = {entry.get("name"): entry for entry in entries}
    for needed in ours:
        entry = found.get(needed["name"])
        if entry is None:
            entries.append(dict(needed))
            done.added.append(f"{needed['name']} to c.{name}")
            continue
        for key, value in needed.items():
            if key in mappings:
                entry[key] = {**value, **entry.get(key, {})}
            elif key in lists:
                missing = [one for one in value if one not in entry.get(key, [])]
                entry[key] = [*entry.get(key, []), *missing]
                if missing:
                    done.added.append(f"{', '.join(missing)} to {needed['name']} in c.{name}")
            else:
                entry.setdefault(key, value)
    return entries


def _mapping(done: Completion, name: str, ours: Mapping[str, Any], given: object) -> dict[str, Any]:
    known = _mapping_of(name, given)
    if missing := [key for key in ours if key not in known]:
        done.added.append(f"{', '.join(missing)} to c.{name}")
    return {**ours, **known}


def _list(name: str, given: object) -> list[Any]:
    if not isinstance(given, list | tuple | set | frozenset):
        raise InvalidRequest(
            f"c.{name} in jupyterhub_config.py is no list.",
            hint=f"Write c.{name} = [...]; what the platform needs is added to it.",
        )
    return list(given)


def _mapping_of(name: str, given: object) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        raise InvalidRequest(
            f"c.{name} in jupyterhub_config.py holds {type(given).__name__} where a dict belongs.",
            hint="JupyterHub's documentation has examples; what the platform needs is added.",
        )
    return given
