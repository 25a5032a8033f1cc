"""Which options of the schema the code reads: found in its source, by the group they are read from.

A read is ``X.GROUP.NAME``, or ``x.NAME`` where ``x`` was assigned from ``X.GROUP`` or is annotated
with the group's class, or with a protocol of the group's options.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path

from detector.core.config.schema import Config, options

CLASSES = {type(group.default).__name__: group.name for group in dataclasses.fields(Config)}
GROUPS = frozenset(CLASSES.values())
Bound = Mapping[str, set[str]]
"""Name of a variable or attribute -> the groups that it may stand for."""


def reads_in(source: str) -> set[tuple[str, str]]:
    """(group, option), whether or not the schema has that option."""
    tree = ast.parse(source)
    bound = _bind(tree)
    return {
        (group, node.attr)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
        for group in _groups_of(node.value, bound)
    }


def unread(package: Path) -> list[str]:
    """Options that nothing in a package reads, but for what lists or types all of them."""
    listing = {"core/config/schema.py", "core/config/reference.py", "core/api/options.py"}
    read: set[tuple[str, str]] = set()
    for file in package.rglob("*.py"):
        if str(file.relative_to(package)) not in listing:
            read |= reads_in(file.read_text(encoding="utf-8"))
    return [f"{group}.{leaf.name}" for group, leaf in options() if (group, leaf.name) not in read]


def _groups_of(node: ast.expr, bound: Bound) -> set[str]:
    if isinstance(node, ast.Attribute):
        return ({node.attr} & GROUPS) | bound.get(node.attr, set())
    return bound.get(node.id, set()) if isinstance(node, ast.Name) else set()


def _bind(tree: ast.Module) -> Bound:
    types = {**CLASSES, **_protocols(tree)}
    bound: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        for name, value in _assigned(node):
            if isinstance(value, ast.Attribute) and value.attr in GROUPS:
                bound.setdefault(name, set()).add(value.attr)
        name = _annotated(node)
        if name is not None:
            words = {one.id for one in ast.walk(node.annotation) if isinstance(one, ast.Name)}
            for word in words & types.keys():
                bound.setdefault(name, set()).add(types[word])
    return bound


def _assigned(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """(name, value), of ``a, self.b = x, y`` each."""
    for target in node.targets if isinstance(node, ast.Assign) else ():
        several = isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
        pairs = [(target, node.value)]
        if several:
            pairs = list(zip(target.elts, node.value.elts, strict=False))
        for place, value in pairs:
            if isinstance(place, (ast.Name, ast.Attribute)):
                yield (place.id if isinstance(place, ast.Name) else place.attr), value


def _annotated(node: ast.AST) -> str | None:
    if isinstance(node, ast.arg) and node.annotation is not None:
        return node.arg
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return node.target.id
    return None


def _protocols(tree: ast.Module) -> dict[str, str]:
    """Class -> group, of protocols all of whose members are options of one group."""
    of_group = {
        group: {leaf.name for place, leaf in options() if place == group} for group in GROUPS
    }
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and "Protocol" in map(ast.unparse, node.bases):
            members = {one.name for one in node.body if isinstance(one, ast.FunctionDef)}
            for group, names in of_group.items():
                if members and members <= names:
                    found[node.name] = group
    return found
