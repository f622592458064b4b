"""Parsers of the admins' files: projects.yaml and the scheduler's policy.

    projects:
      vision:
        quota: 2.5            # GPUs; unlimited is possible; by type: {h100: 2, "*": 4}
        build_quota: 1.5      # the part that sessions may use; default: the quota
        limit: 4              # default: none
        members: [ana, bob]   # JupyterHub users; groups: [...] for groups
        admins: [ana]

Errors in it name file, line, key and value. The fields are the ones of `ProjectPut`; `unlimited`
means no bound.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError

from runai.hub_service.model.project_changes import changed_project
from runai.hub_service.model.records import ProjectSpec
from runai.hub_service.scheduler import SHIPPED, Policy, Snapshot
from runai.hub_service.scheduler.model.json_codec import InvalidSnapshot
from runai.hub_service.scheduler.model.snapshot import MAX_LEVELS
from runai.hub_service.scheduler.model.snapshot_json import policy_from_json, snapshot_to_json
from runai.hub_service.wire.base_schema import ProjectName
from runai.hub_service.wire.errors import InvalidRequest
from runai.hub_service.wire.schemas import ProjectPut
from runai.hub_service.wire.validation import invalid_request

_NAME: TypeAdapter[str] = TypeAdapter(ProjectName)
_MAY_BE_UNLIMITED = frozenset({"quota", "limit"})


def read_projects(path: Path) -> list[ProjectSpec]:
    """Return the projects of a file, parents before their children.

    Raises:
        InvalidRequest: the file cannot be read, or has an invalid value.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(
            f"{path} cannot be read: {getattr(error, 'strerror', None) or 'no UTF-8 text'}.",
            hint="Name a projects.yaml (--projects).",
        ) from error
    return _ProjectsReader(path).read(text)


class _ProjectsReader:
    """Parser of one projects.yaml."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self, text: str) -> list[ProjectSpec]:
        """Return the projects of a text, parents before their children."""
        try:
            root = yaml.compose(text, yaml.SafeLoader)
        except yaml.MarkedYAMLError as error:
            line = error.problem_mark.line + 1 if error.problem_mark else 1
            raise InvalidRequest(
                f"{self._path}, line {line}: this is no YAML: {error.problem}.",
                hint="Indentation and colons matter.",
            ) from error
        except (RecursionError, yaml.YAMLError) as error:
            raise InvalidRequest(f"{self._path} is no YAML.", hint="Is it a text file?") from error
        if root is None:
            return []
        specs: dict[str, tuple[ProjectSpec, yaml.Node]] = {}
        for key, node in self._pairs(root, "the file", "section"):
            if key.value != "projects":
                raise self._error(key, f"there is no section {key.value!r}", "Use projects:.")
            for name, fields in self._pairs(node, "projects", "project"):
                specs[name.value] = (self._project(name, fields), name)
        return list(self._sorted_by_level(specs))

    def _project(self, name: yaml.ScalarNode, fields: yaml.Node) -> ProjectSpec:
        """Return the project of a name and a mapping of fields."""
        try:
            _NAME.validate_python(name.value)
        except ValidationError:
            raise self._error(
                name,
                f"{name.value!r} is not a valid project name",
                "Use small letters, digits and '-', at most 24.",
            ) from None
        given = {
            key.value: self._value(name.value, key, value)
            for key, value in self._pairs(fields, f"project {name.value}", "field")
        }
        try:
            return changed_project(ProjectSpec(name.value), given)
        except InvalidRequest as error:
            raise self._error(name, error.message.rstrip("."), error.hint) from error

    def _value(self, project: str, key: yaml.ScalarNode, node: yaml.Node) -> object:
        """Return the checked value of a project's field."""
        if key.value not in ProjectPut.model_fields:
            raise self._error(
                key,
                f"project {project} has a field {key.value!r}, which means nothing",
                f"Fields: {', '.join(ProjectPut.model_fields)}.",
            )
        try:
            value = _value_or_text(node)
        except _DuplicateKeyError as wrong:
            raise self._error(key, f"{key.value}: {wrong.problem}") from None
        except (ValueError, yaml.YAMLError):
            raise self._error(key, f"{key.value} has no value that can be read") from None
        if value is None and key.value in _MAY_BE_UNLIMITED and _is_empty(node):
            # An empty value is more likely a typing error than "no bound".
            raise self._error(key, f"{key.value} has no value", "Write unlimited if that is meant.")
        if key.value == "quota" and isinstance(value, dict):
            value = self._table(key, value)
        if value == "unlimited" and key.value in _MAY_BE_UNLIMITED:
            value = None
        try:
            put = ProjectPut.model_validate({key.value: value})
        except ValidationError as wrong:
            error = invalid_request([dict(e) for e in wrong.errors()])
            text = f"project {project}: {error.message.rstrip('.')}"
            raise self._error(key, text, error.hint) from None
        return getattr(put, key.value)

    def _table(self, key: yaml.ScalarNode, table: dict[Any, Any]) -> dict[str, object]:
        """Return a quota by GPU type, whose entries may be unlimited but not empty."""
        for name, amount in table.items():
            if amount is None:
                raise self._error(
                    key, f"the quota of {name} has no value", "Write unlimited if that is meant."
                )
        return {str(n): None if v == "unlimited" else v for n, v in table.items()}

    def _pairs(
        self, node: yaml.Node, subject: str, key_kind: str
    ) -> Iterator[tuple[yaml.ScalarNode, yaml.Node]]:
        """Yield the keys and values of a mapping; raise if it is none or a key is repeated."""
        if _is_empty(node):
            return
        if not isinstance(node, yaml.MappingNode):
            raise self._error(node, f"{subject} must consist of lines `name: value`")
        seen: set[str] = set()
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise self._error(key, f"{subject} has something else than a name before a colon")
            if key.value in seen:
                raise self._error(key, f"{key_kind} {key.value!r} is there twice")
            seen.add(key.value)
            yield key, value

    def _sorted_by_level(
        self, specs: dict[str, tuple[ProjectSpec, yaml.Node]]
    ) -> Iterator[ProjectSpec]:
        """Yield the projects, level by level; raise for cycles and unknown parents."""
        placed: set[str | None] = {None}
        unplaced, levels = dict(specs), 0
        while unplaced:
            levels += 1
            ready = [name for name, (spec, _) in unplaced.items() if spec.parent in placed]
            if not ready:
                name, (spec, node) = next(iter(unplaced.items()))
                why = f"has the unknown parent {spec.parent!r}"
                if spec.parent in specs:
                    why = "is its own ancestor"
                raise self._error(node, f"project {name} {why}", "Parents are in the same file.")
            if levels > MAX_LEVELS:
                text = f"project {ready[0]} is below {MAX_LEVELS} other projects"
                hint = f"At most {MAX_LEVELS} levels are possible."
                raise self._error(specs[ready[0]][1], text, hint)
            for name in ready:
                yield unplaced.pop(name)[0]
                placed.add(name)

    def _error(self, node: yaml.Node, text: str, hint: str = "") -> InvalidRequest:
        line = node.start_mark.line + 1
        return InvalidRequest(f"{self._path}, line {line}: {text}.", hint=hint)


class _DuplicateKeyError(yaml.MarkedYAMLError):
    """A key that is there twice, of which PyYAML would keep the last."""


class _UniqueKeyLoader(yaml.SafeLoader):
    """A loader that refuses a key that is there twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002 - the base class's
        keys = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        if twice := [key for key, count in keys.items() if count > 1]:
            raise _DuplicateKeyError(
                problem=f"{twice[0]!r} is there twice", problem_mark=node.start_mark
            )
        return super().construct_mapping(node, deep)


def _value_or_text(node: yaml.Node) -> Any:  # noqa: ANN401  any YAML value
    """Return a node's value, of a float its text."""
    constructor = _UniqueKeyLoader("")
    try:
        value = constructor.construct_object(node, deep=True)
    finally:
        constructor.dispose()
    # Keep the text of a float: 2.5 becomes a Decimal, not the nearest binary number.
    is_float = isinstance(node, yaml.ScalarNode) and isinstance(value, float)
    return node.value if is_float else value


def _is_empty(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null"


_SHIPPED = snapshot_to_json(Snapshot(policy=SHIPPED))["policy"]


def read_policy(path: Path | None) -> Policy:
    """Return the policy of a file; omitted fields are those of the shipped policy, as without one.

    Raises:
        InvalidRequest: the file cannot be read, or has an invalid value.
    """
    if path is None:
        return SHIPPED
    try:
        fields = yaml.load(path.read_text(encoding="utf-8-sig"), _UniqueKeyLoader)  # noqa: S506 - a safe one
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(
            f"{path} cannot be read: {getattr(error, 'strerror', None) or 'no UTF-8 text'}.",
            hint="Name a file with the scheduler's policy (--policy).",
        ) from error
    except _DuplicateKeyError as error:
        raise InvalidRequest(f"{path}: {error.problem}.", hint="Leave one of them.") from error
    except (RecursionError, yaml.YAMLError, ValueError) as error:
        raise InvalidRequest(
            f"{path} is no YAML.", hint="One `field: value` a line; docs/policy.md lists them."
        ) from error
    try:
        fields = {} if fields is None else fields
        return policy_from_json({**_SHIPPED, **fields} if isinstance(fields, dict) else fields)
    except InvalidSnapshot as error:
        raise InvalidRequest(
            f"{path}: {error}.", hint="docs/policy.md lists the fields."
        ) from error
