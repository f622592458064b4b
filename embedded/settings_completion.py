"""Settings that the platform cannot live without, completed after the admin's own file.

An assignment in `jupyterhub_config.py` replaces a whole list. The platform's services, roles,
scopes and variables are added to it by name. The words of the file about them stay.
"""

from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

from traitlets.config import Config
from traitlets.config.loader import LazyConfigValue

from runai.hub_service.wire.errors import InvalidRequest

OF_HUB: Final = {
    "services": '[{"name": "mine", "command": [...]}]',
    "load_roles": '[{"name": "mine", "scopes": [...]}]',
    "custom_scopes": '{"custom:mine": {"description": "..."}}',
}
"""The completed settings of the hub, with how to write each."""
OF_SERVERS: Final = {
    "server_token_scopes": '["access:servers!server", ...]',
    "environment": '{"NAME": "value"}',
}
"""The completed settings of a spawner."""
UNITED: Final = ("scopes", "services")
"""Fields of a role to which ours are added: users and groups stay as the file has them."""


@dataclass
class SettingsCompletion:
    """The settings that complete the admin's file, with a sentence for each addition."""

    config: Any = field(default_factory=Config)
    added: list[str] = field(default_factory=list)

    def add(self, missing: Iterable[str], place: str) -> None:
        """Record an addition, if anything is missing."""
        if names := ", ".join(missing):
            self.added.append(f"{names} to {place}")


def check_file(ours: Config, file: Config) -> None:
    """Check the forms of the file's settings before JupyterHub does, which shows no way out.

    Raises:
        InvalidRequest: a setting has a form that cannot be completed.
    """
    for section, settings in (("JupyterHub", OF_HUB), ("Spawner", OF_SERVERS)):
        given = file.get(section, {})
        for key in settings:
            if key in given:
                _parsed(section, key, deepcopy(given[key]), ours[section][key])


def completed(ours: Config, chosen: Config, spawners: Sequence[str]) -> SettingsCompletion:
    """Return the settings of the hub that complete the chosen ones.

    `spawners` are the names of the spawner's class and its bases, general ones first.

    Raises:
        InvalidRequest: a setting has a form that cannot be completed.
    """
    completion = SettingsCompletion()
    for key in OF_HUB:
        needed: Any = ours.JupyterHub[key]
        given = chosen.JupyterHub.get(key, type(needed)())
        value = _parsed("JupyterHub", key, given, needed)
        unite = _with_entries if isinstance(needed, list) else _with_missing
        completion.config.JupyterHub[key] = unite(completion, f"c.JupyterHub.{key}", needed, value)
    for key in OF_SERVERS:
        value = needed = ours.Spawner[key]
        for section in spawners:
            given = chosen.get(section, {})
            if key in given:
                value = _parsed(section, key, given[key], value)
                value = _with_missing(completion, f"c.{section}.{key}", needed, value)
                completion.config[section][key] = value
    return completion


def _with_entries(
    completion: SettingsCompletion,
    name: str,
    ours: list[dict[str, Any]],
    given: list[dict[str, Any]],
) -> list[dict[str, Any]]:
    """Return the given entries, with ours of the same name merged in and the missing ones added."""
    entries = given
    for needed in ours:
        same = [entry for entry in entries if entry["name"] == needed["name"]]
        if len(same) > 1:  # the file has appended one to ours
            same = [entry for entry in same if entry != needed]
            entries = [entry for entry in entries if entry != needed]
        for entry in same:
            _merge(completion, name, needed, entry)
        if not same:
            entries.append(dict(needed))
            completion.add([needed["name"]], name)
    return entries


def _merge(
    completion: SettingsCompletion, name: str, needed: dict[str, Any], entry: dict[str, Any]
) -> None:
    """Add the missing fields of our service or role to the file's entry of the same name."""
    place = f"{needed['name']} in {name}"
    completion.add([key for key in needed if key not in entry], place)
    for key, value in needed.items():
        if key not in entry:
            entry[key] = value
        elif isinstance(value, dict) or ("load_roles" in name and key in UNITED):
            known = _of_kind(name, f": {key} of {needed['name']}", type(value), entry[key])
            entry[key] = _with_missing(completion, place, value, known)


def _with_missing(completion: SettingsCompletion, place: str, needed: Any, given: Any) -> Any:  # noqa: ANN401
    """Return a list or dict, completed by the needed one."""
    missing = [item for item in needed if item not in given]
    completion.add(missing, place)
    if isinstance(needed, dict):
        return {**given, **{key: needed[key] for key in missing}}
    return [*given, *missing]


def _parsed(section: str, key: str, given: object, so_far: Any) -> Any:  # noqa: ANN401
    """Return the value of a setting as a new list or dict; `so_far` is its value so far.

    Raises:
        InvalidRequest: it has another form.
    """
    name, kind = f"c.{section}.{key}", type(so_far)
    if isinstance(given, LazyConfigValue):
        # The operations of another kind would be lost, or fail without the setting's name.
        changes = given.to_dict()
        update = changes.pop("update", {})
        is_of_dict = isinstance(update, dict) and not changes
        is_of_other_kind = not is_of_dict if kind is dict else bool(update)
        if is_of_other_kind:
            _refuse(name, f" is changed as if it were no {kind.__name__}")
        given = given.get_value(so_far)
    value = _of_kind(name, "", kind, given)
    if key == "custom_scopes":
        return {scope: _of_kind(name, f": {scope}", dict, value[scope]) for scope in value}
    if key == "environment":
        for variable, text in value.items():
            if not (isinstance(text, str) or callable(text)):
                _refuse(name, f": {variable} is a {type(text).__name__} where a str belongs")
    if key not in OF_HUB:
        return value
    entries = [_of_kind(name, ": an entry", dict, entry) for entry in value]
    if not all(isinstance(entry.get("name"), str) for entry in entries):
        _refuse(name, ": an entry has no name")
    return entries


def _of_kind(name: str, part: str, kind: type, given: object) -> Any:  # noqa: ANN401
    """Return a copy of a list or dict; a list may be given as another collection."""
    fits = dict if kind is dict else (list, tuple, set, frozenset)
    if not isinstance(given, fits):
        found = "None" if given is None else f"a {type(given).__name__}"
        _refuse(name, f"{part} is {found} where a {kind.__name__} belongs")
    return kind(given)


def _refuse(name: str, what: str) -> NoReturn:
    example = {**OF_HUB, **OF_SERVERS}[name.rpartition(".")[2]]
    raise InvalidRequest(
        f"{name} in jupyterhub_config.py{what}.",
        hint=f"Write {name} = {example}; what the platform needs is added to it.",
    )
