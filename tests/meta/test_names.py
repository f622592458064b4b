"""Names of things: the field's words in code, and test names that say what they test.

The dictionary is docs/dev/names.md.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = (
    *("benchmarks", "docs", "elastic", "embedded", "examples", "hub_service"),
    *("lab", "spawner", "tests", "widgets"),
)
MAX_DIALECT = 0.003
MAX_RIDDLES = 0.05
MAX_ALLOWED = 40

PAGE = (ROOT / "docs/dev/names.md").read_text(encoding="utf-8")
DIALECT = set(re.findall(r"`(\w+)`", PAGE.partition("## Words that are no nouns")[2].split("|")[0]))
WORDS_OF_CLASS = {
    name: set(words.split(", "))
    for classes, words in re.findall(
        r"^\| (`\w+`(?:, `\w+`)*) \| ([\w, ]+) \|$", PAGE, re.MULTILINE
    )
    for name in re.findall(r"\w+", classes)
}
RIDDLES = {
    *("a", "an", "the", "it", "its", "they", "them", "their", "this", "that", "these", "those"),
    *("of", "with", "without", "for", "from", "to", "in", "on", "at", "by", "as", "into"),
    *(
        "what",
        "who",
        "whose",
        "which",
        "where",
        "there",
        "then",
        "so",
        "such",
        "nobody",
        "nothing",
        "everybody",
    ),
    *(
        "everything",
        "one",
        "some",
        "any",
        "each",
        "both",
        "neither",
        "either",
        "only",
        "also",
        "even",
    ),
}
BANNED = {
    *("_tending", "_leavings", "_showing", "mirror", "rests", "rest_with", "unsaid", "outlived"),
    *("_told_otherwise", "_having", "expect_its_like", "_one", "_followed", "is_extra"),
    *("_set_apart", "On"),
}
"""Names without a class that say nothing."""
ALLOWED = {
    **dict.fromkeys(
        [
            "hub_service/model/records.py cpu_asked",
            "hub_service/model/records.py memory_asked",
            "hub_service/scheduler/model/snapshot.py devices_wanted",
            "hub_service/scheduler/model/snapshot.py gone_by",
            "hub_service/scheduler/model/snapshot.py name_others",
            "hub_service/wire/device_schemas.py OthersView",
            "hub_service/wire/device_schemas.py others",
            "hub_service/wire/elastic_messages.py least",
            "hub_service/wire/explanation_schemas.py others",
            "hub_service/wire/schemas.py kept",
            "hub_service/wire/schemas.py keeps_left",
            "hub_service/wire/schemas.py least",
            "hub_service/wire/schemas.py told",
            "hub_service/wire/usage_schemas.py asked",
            "hub_service/wire/usage_schemas.py held_s",
            "widgets/state.py told",
        ],
        "a key of a message, a snapshot or a stored row",
    ),
    **dict.fromkeys(
        [
            "hub_service/client/calls.py asked",
            "hub_service/client/calls.py run",
            "hub_service/client/calls.py which",
            "hub_service/client/client.py which",
        ],
        "a keyword of the public client",
    ),
    "hub_service/api/pages/page_parts.py others": "a variable of the page's template",
    "hub_service/ledger/totals.py held_s": "a column of the ledger",
}
"""Names that stay, by file, and the reason."""


def words(name: str) -> list[str]:
    """Split an identifier into lower-case words."""
    return [
        word.lower()
        for part in name.split("_")
        for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", part)
    ]


def bound_names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield each name that a module binds, once a scope, with its line."""
    seen: set[str] = set()
    for name, line, inner in _bindings(tree):
        if name not in seen and not (name.startswith("__") and name.endswith("__")):
            seen.add(name)
            yield name, line
        if inner is not None:
            yield from bound_names(inner)


def _bindings(scope: ast.AST) -> Iterator[tuple[str, int, ast.AST | None]]:
    """Yield names bound in a scope, with lines and inner scopes."""
    for node in ast.iter_child_nodes(scope):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name, node.lineno, node
                continue
            case ast.Lambda():
                yield "__lambda__", node.lineno, node
                continue
            case ast.Name(ctx=ast.Store()):
                yield node.id, node.lineno, None
            case ast.Attribute(ctx=ast.Store()):
                yield node.attr, node.lineno, None
            case ast.arg():
                yield node.arg, node.lineno, None
            case ast.ExceptHandler(name=str(name)) | ast.alias(asname=str(name)):
                yield name, node.lineno, None
        yield from _bindings(node)


def annotated_names(tree: ast.AST) -> Iterator[tuple[str, int, str]]:
    """Yield names with the class of their annotation or of the constructor that is called."""
    for node in ast.walk(tree):
        match node:
            case ast.arg(arg=name, annotation=ast.expr() as annotation):
                yield name, node.lineno, _class_of(annotation)
            case ast.AnnAssign(target=target, annotation=annotation):
                yield _name_of(target), node.lineno, _class_of(annotation)
            case ast.Assign(targets=[target], value=ast.Call(func=function)):
                yield _name_of(target), node.lineno, _class_of(function)


def _name_of(target: ast.expr) -> str:
    match target:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def _class_of(annotation: ast.expr) -> str:
    """Return the class of an annotation, without module and `None`; "" if it is another form."""
    match annotation:
        case ast.Constant(value=str(text)) if text:
            return _class_of(ast.parse(text, mode="eval").body)
        case ast.BinOp(left=left, right=ast.Constant(value=None)):
            return _class_of(left)
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def is_dialect(name: str) -> bool:
    """Return True if a word of a name is of the dialect, or the name says nothing."""
    return name in BANNED or not DIALECT.isdisjoint(words(name))


def is_called_by_class(name: str, cls: str) -> bool:
    """Return True if a name has a word of its class, in the plural too, or is `other`."""
    expected = WORDS_OF_CLASS.get(cls, {""}) | {"other"}
    return (
        not name
        or cls not in WORDS_OF_CLASS
        or any(word in expected or word.removesuffix("s") in expected for word in words(name))
    )


def is_riddle(name: str) -> bool:
    """Return True if a test's name begins with an article, a pronoun or a preposition."""
    return words(name)[1:2] != [] and words(name)[1] in RIDDLES


@cache
def trees_of(folder: str) -> dict[str, ast.Module]:
    """Parse the files of a folder, by path."""
    return {
        str(path.relative_to(ROOT)): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted((ROOT / folder).rglob("*.py"))
        if ".ipynb_checkpoints" not in path.parts
    }


@pytest.mark.parametrize("folder", FOLDERS)
def test_identifiers_have_few_words_of_project_dialect(folder: str):
    names = [
        (f"{path}:{line} {name}", name)
        for path, tree in trees_of(folder).items()
        for name, line in bound_names(tree)
        if not name.startswith("test_") and f"{path} {name}" not in ALLOWED
    ]
    dialect = [where for where, name in names if is_dialect(name)]

    assert len(dialect) <= MAX_DIALECT * len(names), dialect
    assert [where for where in dialect if where.rpartition(" ")[2] in BANNED] == []


@pytest.mark.parametrize("folder", FOLDERS)
def test_variable_names_contain_a_word_for_their_class(folder: str):
    assert [
        f"{path}:{line} {name}: {cls} has none of the words {sorted(WORDS_OF_CLASS[cls])}"
        for path, tree in trees_of(folder).items()
        for name, line, cls in annotated_names(tree)
        if not is_called_by_class(name, cls) and f"{path} {name}" not in ALLOWED
    ] == []


def test_names_of_tests_begin_with_their_subject():
    tests = [
        f"{path}:{line} {name}"
        for path, tree in trees_of("tests").items()
        for name, line in bound_names(tree)
        if name.startswith("test_")
    ]
    riddles = [test for test in tests if is_riddle(test.rpartition(" ")[2])]

    assert len(tests) > 1000
    assert len(riddles) <= MAX_RIDDLES * len(tests), riddles


def test_exceptions_from_the_naming_rules_are_few_and_in_use():
    bound = {
        f"{path} {name}"
        for folder in FOLDERS
        for path, tree in trees_of(folder).items()
        for name, _ in bound_names(tree)
    }

    assert len(ALLOWED) <= MAX_ALLOWED
    assert set(ALLOWED) - bound == set()


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        pytest.param("told = 1", ["told"], id="variable"),
        pytest.param("def f(asked): ...", ["asked"], id="parameter"),
        pytest.param("def drawOthers(): ...", ["drawOthers"], id="function"),
        pytest.param("class GiverKind: ...", ["GiverKind"], id="class"),
        pytest.param("self._held = 1", ["_held"], id="attribute"),
        pytest.param("try: pass\nexcept E as told: pass", ["told"], id="exception"),
        pytest.param("import a as way", ["way"], id="import"),
        pytest.param("told = 1\ndef f(): told = 2", ["told", "told"], id="two scopes"),
        pytest.param("self.mirror = mirror", ["mirror"], id="banned name"),
        pytest.param("holder = withheld = 1", [], id="dialect inside other words"),
    ],
)
def test_name_check_finds_dialect_in_each_binding(source: str, expected: list[str]):
    assert [name for name, _ in bound_names(ast.parse(source)) if is_dialect(name)] == expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        pytest.param("def f(kind: RequestShape): ...", "RequestShape", id="parameter"),
        pytest.param("kind: RequestShape | None", "RequestShape", id="optional"),
        pytest.param("kind: 'model.RequestShape'", "RequestShape", id="string with a module"),
        pytest.param("self.kind = RequestShape(1)", "RequestShape", id="constructor"),
    ],
)
def test_name_check_finds_the_class_of_a_variable(source: str, expected: str):
    assert list(annotated_names(ast.parse(source))) == [("kind", 1, expected)]
