"""The changes: each removes or replaces one thing in a function, such as a statement, a condition or a number.

Texts are not changed, because the wording of an error is not a rule.  Neither is what only a linter or a type checker
reads, such as `del unused`, nor the constants and defaults of a module: a test that fixed their values would only
repeat them.
"""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Final, NamedTuple, TypeVar

T = TypeVar("T", bound=ast.AST)

AnyFunction = ast.FunctionDef | ast.AsyncFunctionDef

_COMPARED: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
_COMPUTED: Final[dict[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Mod: ast.Mult,
    ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr,
}  # fmt: skip
_OPPOSITES: Final = {"min": "max", "max": "min", "any": "all", "all": "any"}


class Change(NamedTuple):
    file: str
    function: str
    """The name of the outermost function, with its class."""
    before: str
    """The statement (of a compound one the head) as it is."""
    after: str
    """The statement with the change."""
    lines: range
    """A test may notice the change if it runs one of these."""
    tree: ast.Module
    nodes: tuple[ast.AST, ast.AST]

    @property
    def name(self) -> tuple[str, str, str, str]:
        """What names it, also as lines move."""
        return self[:4]

    def __str__(self) -> str:
        """Say in which function what is replaced by what."""
        return f"{self.file} {self.function}: {self.before} -> {self.after}"

    def code(self, filename: str) -> CodeType:
        """Compile the module with the change."""
        tree = _replaced(self.tree, *self.nodes)
        supers = [f.lineno for f in ast.walk(self.tree) if isinstance(f, AnyFunction) and "super()" in ast.unparse(f)]
        for each in ast.walk(tree):
            if isinstance(each, AnyFunction) and each.lineno in supers:  # without this it fits only with its `super()`
                each.body[:0] = ast.parse("__class__").body
        return compile(ast.fix_missing_locations(tree), filename, "exec", dont_inherit=True)


def changes(path: Path, file: str) -> list[Change]:
    """Find the changes of a module, which is called `file` in the results."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found: list[Change] = []
    seen: Counter[tuple[str, str, str]] = Counter()
    for name, function in _functions(tree):
        for place in _places(function):
            for nodes in _replacements(place):
                before, after = _line(place.statement), _line(_replaced(place.statement, *nodes))
                seen[name, before, after] += 1
                number = seen[name, before, after]
                after += f"  # no. {number}" if number > 1 else ""
                found.append(Change(file, name, before, after, place.lines, tree, nodes))
    return found


class _Place(NamedTuple):
    node: ast.AST
    parent: ast.AST
    statement: ast.AST
    lines: range


def _functions(tree: ast.Module) -> Iterator[tuple[str, AnyFunction]]:
    for node in tree.body:
        if isinstance(node, AnyFunction):
            yield node.name, node
        elif isinstance(node, ast.ClassDef) and not any("Protocol" in ast.unparse(base) for base in node.bases):
            yield from ((f"{node.name}.{each.name}", each) for each in node.body if isinstance(each, AnyFunction))


def _places(function: AnyFunction) -> Iterator[_Place]:
    """Find everything within the body of a function that is not an annotation, an assertion or a text."""

    def walk(node: ast.AST, parent: ast.AST, statement: ast.AST, lines: range) -> Iterator[_Place]:
        if isinstance(node, (ast.Assert, ast.JoinedStr, ast.Import, ast.ImportFrom, ast.arguments)):
            return
        if isinstance(node, ast.keyword) and node.arg == "strict":  # of `zip`: an assertion, too
            return
        if isinstance(node, (ast.stmt, ast.ExceptHandler)):
            end = node.body[0].lineno if hasattr(node, "body") else (node.end_lineno or node.lineno) + 1
            statement, lines = node, range(node.lineno, max(end, node.lineno + 1))
        yield _Place(node, parent, statement, lines)
        for field, child in ast.iter_fields(node):
            if field in {"annotation", "returns", "decorator_list"}:
                continue
            for each in child if isinstance(child, list) else [child]:
                if isinstance(each, ast.AST):
                    yield from walk(each, node, statement, lines)

    for statement in function.body:
        yield from walk(statement, function, statement, range(0))


def _replacements(place: _Place) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Name what may be replaced at a place, and by what."""
    node = place.node
    if isinstance(node, ast.stmt):
        yield from _of_a_statement(node)
    elif isinstance(node, ast.ExceptHandler):
        yield node, _copy(node, type=ast.Tuple([], ast.Load()))  # catches nothing
    elif isinstance(node, ast.expr):
        yield from _of_an_expression(node, place.parent)
    elif isinstance(node, ast.comprehension):
        for test in node.ifs:
            yield node, _copy(node, ifs=[each for each in node.ifs if each is not test])


def _of_a_statement(node: ast.stmt) -> Iterator[tuple[ast.AST, ast.AST]]:
    if isinstance(node, (ast.With, ast.AsyncWith)):
        if not any(item.optional_vars for item in node.items):
            yield node, ast.If(ast.Constant(value=True), node.body, [])
    elif isinstance(node, (ast.If, ast.While)):
        yield node, _copy(node, test=ast.UnaryOp(ast.Not(), node.test))
    elif isinstance(node, (ast.Assign, ast.AugAssign, ast.Return, ast.Raise, ast.Break, ast.Continue)) or (
        (isinstance(node, ast.AnnAssign) and node.value is not None)
        or (isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant))
        or (isinstance(node, ast.Delete) and not all(isinstance(each, ast.Name) for each in node.targets))
    ):
        yield node, ast.Pass()


def _of_an_expression(node: ast.expr, parent: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    condition = isinstance(parent, (ast.If, ast.While)) and node is parent.test  # it is negated as a whole
    if isinstance(node, ast.BoolOp):
        for operand in node.values:
            rest = [each for each in node.values if each is not operand]
            yield node, _copy(node, values=rest) if len(rest) > 1 else rest[0]
    elif isinstance(node, ast.IfExp):
        yield node, node.body
        yield node, node.orelse
    elif isinstance(node, ast.Compare):
        for number, kind in enumerate(node.ops):
            if not condition or isinstance(kind, (ast.Lt, ast.LtE, ast.Gt, ast.GtE)):
                ops = [*node.ops[:number], _COMPARED[type(kind)](), *node.ops[number + 1 :]]
                yield node, _copy(node, ops=ops)
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, (bool, int, float)) and not condition:
            yield node, ast.Constant(not node.value if isinstance(node.value, bool) else node.value + 1)
    elif not condition:
        yield from _of_an_operator(node, parent)


def _of_an_operator(node: ast.expr, parent: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    if isinstance(node, ast.UnaryOp):
        yield node, node.operand
    elif isinstance(node, ast.BinOp) and type(node.op) in _COMPUTED:
        yield node, _copy(node, op=_COMPUTED[type(node.op)]())
    elif isinstance(node, ast.Name) and isinstance(parent, ast.Call) and node is parent.func and node.id in _OPPOSITES:
        yield node, ast.Name(_OPPOSITES[node.id], ast.Load())


def _copy(node: ast.AST, **fields: object) -> ast.AST:
    return type(node)(**{**dict(ast.iter_fields(node)), **fields})


def _replaced(tree: T, before: ast.AST, after: ast.AST) -> T:
    """Copy a tree, with one node replaced."""
    return copy.deepcopy(tree, {id(before): ast.copy_location(after, before)})


def _line(node: ast.AST) -> str:
    """Write a statement in one line: of a compound one only its head."""
    if isinstance(node, ast.ExceptHandler):
        return f"except {ast.unparse(node.type)}:" if node.type else "except:"
    return ast.unparse(node).partition("\n")[0]
