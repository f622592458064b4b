"""A module of the scheduler with its mutants, and how one takes the place of what it changes.

Knows a mutant's name, which stays while its function does, and what is known of it beforehand
(`equivalent_mutants`). Tries nothing: that is `mutants`'. Which changes there are is `mutations`'.
"""

from __future__ import annotations

import ast
import gc
import hashlib
import sys
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from equivalent_mutants import EQUIVALENT, SURVIVING, Equivalent
from mutations import Mutation, mutations

NAMESPACE = "runai.hub_service.scheduler"


@dataclass(frozen=True, slots=True)
class Mutant:
    """A mutation of a module, and a name that stays while its function stays as it is."""

    module: str
    mutation: Mutation
    where: str
    """Its function."""
    begins: int
    """The line where the code of that function begins, its decorators included."""
    key: str
    text: str
    """The line that is changed."""

    @property
    def is_equivalent(self) -> bool:
        """Tell whether it is known that nothing differs."""
        return self._why_in(EQUIVALENT) is not None

    @property
    def why(self) -> str:
        """Say why it survives, as far as that is known."""
        nothing = self._why_in(EQUIVALENT)
        if nothing is not None:
            return f"makes no difference: {nothing}"
        return self._why_in(SURVIVING) or "not looked into"

    def _why_in(self, table: Mapping[tuple[str, str], tuple[Equivalent, ...]]) -> str | None:
        listed = table.get((self.module, self.where), ())
        same = (e for e in listed if e.what in {self.mutation.what, "*"} and e.text in self.text)
        return next((e.why for e in same), None)

    @property
    def title(self) -> str:
        """Say where it is and what it does."""
        m = self.mutation
        return f"{self.module}.py:{m.line}:{m.column} {self.where}: {m.what}  |  {self.text}"


class Source:
    """A module's source as it is, and the functions that live of it."""

    def __init__(self, path: Path) -> None:
        """Read and compile it."""
        self.name = path.stem
        self.text = path.read_text(encoding="utf-8")
        self.tree = ast.parse(self.text)
        self.module = sys.modules[f"{NAMESPACE}.{self.name}"]
        self.path = str(self.module.__file__)
        self.lines = self.text.splitlines()
        self.code = compile(self.tree, self.path, "exec")
        self._functions = {
            node: ast.dump(node)
            for node in ast.walk(self.tree)
            if isinstance(node, ast.FunctionDef)
        }
        self._living = [
            thing
            for thing in gc.get_objects()
            if type(thing) is types.FunctionType and thing.__code__.co_filename == self.path
        ]

    def mutants(self) -> Iterator[Mutant]:
        """Give every mutant of a function of the module."""
        for mutation in mutations(self.tree):
            function = self._function_at(mutation.line)
            if function is None:
                continue  # constants and tables of a module: what reads them is tried
            text = self.lines[mutation.line - 1].strip()
            shape = (
                f"{self._functions[function]} {mutation.line - function.lineno} {mutation.column}"
            )
            key = hashlib.sha1(f"{self.name} {shape} {mutation.what}".encode()).hexdigest()[:16]
            begins = min([function.lineno, *(node.lineno for node in function.decorator_list)])
            yield Mutant(self.name, mutation, function.name, begins, key, text)

    def _function_at(self, line: int) -> ast.FunctionDef | None:
        around = [f for f in self._functions if f.lineno <= line <= (f.end_lineno or 0)]
        return max(around, key=lambda function: function.lineno, default=None)

    def become(self, mutation: Mutation) -> int:
        """Put the changed code into every living function; tell how many there were."""
        changed = compile(mutation.put_into(self.tree), self.path, "exec")
        new_of: dict[tuple[str, int], types.CodeType] = {}
        for old, new in _pairs(self.code, changed):
            if old != new:
                new_of[old.co_qualname, old.co_firstlineno] = new
        count = 0
        for function in self._living:
            code = function.__code__
            replacement = new_of.get((code.co_qualname, code.co_firstlineno))
            if replacement is not None:
                function.__code__ = replacement
                count += 1
        return count


def _pairs(
    old: types.CodeType, new: types.CodeType
) -> Iterator[tuple[types.CodeType, types.CodeType]]:
    olds = [c for c in old.co_consts if isinstance(c, types.CodeType)]
    news = [c for c in new.co_consts if isinstance(c, types.CodeType)]
    for one, other in zip(olds, news, strict=False):
        yield one, other
        yield from _pairs(one, other)
