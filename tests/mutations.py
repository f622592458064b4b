"""Small wrong changes to a module's source, each as a tree that compiles: what `mutants` tries.

Knows which changes there are: comparisons, plus and minus, constants, and/or, min/max, any/all,
sort keys and their direction, statements left out. Knows no tests. Annotations, defaults,
docstrings, assertions, raised sentences, the text of f-strings and counters of cost are left alone.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
_SWAPPED = {"min": "max", "max": "min", "any": "all", "all": "any"}
_ORDERED = {"sorted", "sort"}
_COUNTERS = {"asks", "looks", "victim_looks"}
"""They count what a cycle costs; `test_cost.py` compares them with themselves."""
_KEY_WORDS = ("key", "age", "rank", "_by_", "deprivation", "place_in_queue", "first_to_go")
_IN_WORDS: dict[type[ast.AST], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.BitOr: "|",
    ast.BitAnd: "&",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Is: "is",
    ast.IsNot: "is not",
    ast.In: "in",
    ast.NotIn: "not in",
    ast.And: "and",
    ast.Or: "or",
}


@dataclass(frozen=True, slots=True)
class Mutation:
    """One change: where, what, and how to make it in the module's tree."""

    line: int
    column: int
    what: str
    index: int
    """Which node of the tree, counted by `ast.walk`."""
    change: Callable[[ast.AST], ast.AST]

    def put_into(self, tree: ast.Module) -> ast.Module:
        """Change the tree, which cannot be changed back: call it in a process that ends."""
        target = next(islice(ast.walk(tree), self.index, None))
        _Replacing(target, self.change(copy.deepcopy(target))).visit(tree)
        return tree


class _Replacing(ast.NodeTransformer):
    def __init__(self, target: ast.AST, new: ast.AST) -> None:
        self._target = target
        self._new = new

    def visit(self, node: ast.AST) -> ast.AST:
        if node is self._target:
            ast.copy_location(self._new, node)
            return ast.fix_missing_locations(self._new)
        return self.generic_visit(node)


def mutations(tree: ast.Module) -> Iterator[Mutation]:
    """Give every mutation of a module."""
    left_alone = _left_alone(tree)
    keys = _sort_keys(tree)
    for index, node in enumerate(ast.walk(tree)):
        if id(node) in left_alone or not isinstance(node, ast.expr | ast.stmt):
            continue
        for what, change in _changes(node):
            yield Mutation(node.lineno, node.col_offset, what, index, change)
        if id(node) in keys and isinstance(node, ast.Tuple):
            for position, part in enumerate(node.elts):
                if isinstance(part, ast.Constant):
                    continue
                what = f"sort key without {ast.unparse(part)}"
                yield Mutation(node.lineno, node.col_offset, what, index, _without(position))


def _left_alone(tree: ast.Module) -> set[int]:
    """Name the nodes in which nothing is changed."""
    skipped: list[ast.AST] = []
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                given = node.args
                arguments = [*given.posonlyargs, *given.args, *given.kwonlyargs]
                arguments += filter(None, [given.vararg, given.kwarg])
                skipped += [a.annotation for a in arguments if a.annotation]
                skipped += [node.returns] if node.returns else []
                # Defaults are evaluated where the function is made, not where it runs.
                skipped += [*node.args.defaults, *filter(None, node.args.kw_defaults)]
                skipped += node.decorator_list
            case ast.AnnAssign():
                skipped.append(node.annotation)
            case ast.Assert() | ast.Raise():
                skipped.append(node)
            case ast.JoinedStr():
                skipped.append(node)
            case ast.Expr(value=ast.Constant()):
                skipped.append(node)
            case ast.Assign(targets=[ast.Attribute(attr=name)]) if name in _COUNTERS:
                skipped.append(node)
            case ast.AugAssign(target=ast.Attribute(attr=name)) if name in _COUNTERS:
                skipped.append(node)
            case ast.keyword(arg="strict"):
                skipped.append(node)
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                skipped.append(node)
            case _:
                pass
    return {id(inside) for node in skipped for inside in ast.walk(node)}


def _sort_keys(tree: ast.Module) -> set[int]:
    """Name the tuples by which something is sorted: of `key=` lambdas and of key functions."""
    found: set[int] = set()
    for node in ast.walk(tree):
        match node:
            case ast.keyword(arg="key", value=ast.Lambda(body=body)):
                found.add(id(body))
            case ast.FunctionDef() if any(word in node.name for word in _KEY_WORDS):
                found |= {
                    id(inside.value)
                    for inside in ast.walk(node)
                    if isinstance(inside, ast.Return) and inside.value
                }
            case ast.Assign(targets=[ast.Attribute(attr="key" | "age")], value=value):
                found.add(id(value))
            case _:
                pass
    return found


def _without(position: int) -> Callable[[ast.AST], ast.AST]:
    def change(node: ast.AST) -> ast.AST:
        assert isinstance(node, ast.Tuple)
        node.elts[position] = ast.Constant(0)
        return node

    return change


def _changes(  # noqa: C901, PLR0912  one case for each kind of change
    node: ast.AST,
) -> Iterator[tuple[str, Callable[[ast.AST], ast.AST]]]:
    match node:
        case ast.Compare():
            for position, operator in enumerate(node.ops):
                for other in _COMPARISONS[type(operator)]:
                    yield _words(operator, other()), _with_comparison(position, other())
        case ast.BinOp(op=operator) | ast.AugAssign(op=operator) if type(operator) in _OPERATORS:
            opposite = _OPERATORS[type(operator)]()
            yield _words(operator, opposite), _setting("op", opposite)
        case ast.BoolOp(op=operator):
            swapped: ast.boolop = ast.Or() if isinstance(operator, ast.And) else ast.And()
            yield _words(operator, swapped), _setting("op", swapped)
        case ast.UnaryOp(op=ast.Not()):
            yield "not left out", _operand
        case ast.UnaryOp(op=ast.USub()):
            yield "minus left out", _operand
        case ast.Constant(value=bool(value)):
            yield f"{value} -> {not value}", _setting("value", not value)
        case ast.Constant(value=int(value)):
            yield f"{value} -> {value + 1}", _setting("value", value + 1)
            yield f"{value} -> {value - 1}", _setting("value", value - 1)
        case ast.Call(func=ast.Name(id=name)) if name in _SWAPPED:
            yield f"{name} -> {_SWAPPED[name]}", _calling(_SWAPPED[name])
        case ast.Continue():
            yield "continue -> break", lambda _: ast.Break()
        case ast.Break():
            yield "break -> continue", lambda _: ast.Continue()
        case ast.Expr(value=ast.Call()):
            yield f"left out: {_short(node)}", lambda _: ast.Pass()
        case ast.AugAssign() | ast.Delete():
            yield f"left out: {_short(node)}", lambda _: ast.Pass()
        case ast.If() | ast.IfExp() | ast.While() if isinstance(
            node.test, ast.Name | ast.Attribute | ast.Call
        ):
            yield f"if not {_short(node.test)}", _negating
        case _:
            pass
    if isinstance(node, ast.AugAssign) and type(node.op) in _OPERATORS:
        yield f"left out: {_short(node)}", lambda _: ast.Pass()
    if isinstance(node, ast.Call) and _called(node) in _ORDERED:
        yield "order reversed", _reversing


def _words(old: ast.AST, new: ast.AST) -> str:
    return f"{_IN_WORDS[type(old)]} -> {_IN_WORDS[type(new)]}"


def _short(node: ast.AST) -> str:
    text = ast.unparse(node)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _called(node: ast.Call) -> str:
    match node.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""


def _setting(attribute: str, value: object) -> Callable[[ast.AST], ast.AST]:
    def change(node: ast.AST) -> ast.AST:
        setattr(node, attribute, value)
        return node

    return change


def _with_comparison(position: int, operator: ast.cmpop) -> Callable[[ast.AST], ast.AST]:
    def change(node: ast.AST) -> ast.AST:
        assert isinstance(node, ast.Compare)
        node.ops[position] = operator
        return node

    return change


def _calling(name: str) -> Callable[[ast.AST], ast.AST]:
    def change(node: ast.AST) -> ast.AST:
        assert isinstance(node, ast.Call)
        node.func = ast.copy_location(ast.Name(name, ast.Load()), node.func)
        return node

    return change


def _operand(node: ast.AST) -> ast.AST:
    assert isinstance(node, ast.UnaryOp)
    return node.operand


def _negating(node: ast.AST) -> ast.AST:
    assert isinstance(node, ast.If | ast.IfExp | ast.While)
    node.test = ast.UnaryOp(ast.Not(), node.test)
    return node


def _reversing(node: ast.AST) -> ast.AST:
    assert isinstance(node, ast.Call)
    given = next((k for k in node.keywords if k.arg == "reverse"), None)
    if given is None:
        node.keywords.append(ast.keyword("reverse", ast.Constant(value=True)))
    else:
        given.value = ast.UnaryOp(ast.Not(), given.value)
    return node
