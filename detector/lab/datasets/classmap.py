"""Pair the classes of a model with those of labels, by a mapping in YAML or by equal names."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from detector.core.errors import UsageError
from detector.core.errors.parsing import refuse_unknown
from detector.core.errors.reading import read_text
from detector.core.errors.yaml_parsing import parse_yaml
from detector.core.models.catalogue import folder

EXAMPLE = "classes: {vehicle: [car, truck, bus, motorcycle]}"


@dataclass(frozen=True, slots=True)
class ClassMap:
    """``classes``: scored class -> names that count as this class. ``ignore``: scored class ->
    names of labels to ignore. ``optional``: names that both model and labels may lack."""

    path: str
    classes: Mapping[str, tuple[str, ...]]
    ignore: Mapping[str, tuple[str, ...]]
    optional: frozenset[str]


@dataclass(frozen=True, slots=True)
class ClassPairs:
    """A mapping bound to the classes of a model and of labels. ``targets``: the scored classes."""

    targets: tuple[str, ...]
    groups: tuple[tuple[int, ...], ...]  # for each target, the model's class ids
    label_ids: Mapping[int, int]  # label's class id -> index of its target; other ids are not used
    ignored_ids: Mapping[int, int]  # class id of a label to ignore -> index of its target
    notes: tuple[str, ...] = field(default=())

    @property
    def merges(self) -> bool:
        return any(len(group) > 1 for group in self.groups)

    def label_of(self, target: int) -> int | None:
        """Return the class id of a target's labels; None if there is not exactly one."""
        ids = [label for label, at in self.label_ids.items() if at == target]
        return ids[0] if len(ids) == 1 else None


def read_mapping(spec: str, packaged: Path) -> ClassMap:
    """Read file ``spec`` or SPEC.yaml in ``packaged``. Raises UsageError that names a wrong key."""
    path = Path(spec)
    if not os.path.exists(path) or os.path.isdir(path):
        path = packaged / f"{spec}.yaml"
        if not os.path.isfile(path):
            known = ", ".join(sorted(file.stem for file in packaged.glob("*.yaml")))
            raise UsageError(
                f"--mapping {spec}: no such file; give a YAML file ({EXAMPLE}), or a "
                f"built-in one: {known}"
            )
    return _parse_mapping(str(path), parse_yaml(read_text(path, "a mapping of classes"), path))


def _parse_mapping(path: str, content: Any) -> ClassMap:
    if (
        not isinstance(content, dict)
        or not isinstance(content.get("classes"), dict)
        or not content["classes"]
    ):
        raise UsageError(f"{path}: a mapping needs the key 'classes', such as {EXAMPLE}")
    refuse_unknown(path, "key", content, ("classes", "ignore"))
    optional: set[str] = set()
    classes = _read_names(path, "classes", content["classes"], optional)
    ignore = _read_names(path, "ignore", content.get("ignore") or {}, optional)
    for target in ignore:
        if target not in classes:
            raise UsageError(
                f"{path}: ignore.{target}: no such class; classes are {', '.join(classes)}"
            )
    places: dict[str, str] = {}
    for group, table in (("classes", classes), ("ignore", ignore)):
        for target, names in table.items():
            for name in dict.fromkeys((*names, target) if group == "classes" else names):
                if name in places:
                    raise UsageError(
                        f"{path}: {name!r} is in {places[name]} and in {group}.{target}; keep one"
                    )
                places[name] = f"{group}.{target}"
    return ClassMap(path, classes, ignore, frozenset(optional))


def _read_names(
    path: str, group: str, table: Any, optional: set[str]
) -> dict[str, tuple[str, ...]]:
    if not isinstance(table, dict):
        raise UsageError(f"{path}: {group!r} must hold classes with lists of names, like {EXAMPLE}")
    names_by_class: dict[str, tuple[str, ...]] = {}
    for target, names in table.items():
        names = [names] if isinstance(names, str) else names
        if not isinstance(names, list) or not all(isinstance(name, (str, int)) for name in names):
            raise UsageError(f"{path}: {group}.{target} must be a list of names: [car, truck]")
        plain = []
        for name in map(str, names):
            if name.startswith("(") and name.endswith(")"):
                name = name[1:-1].strip()
                optional.add(name)
            plain.append(name)
        names_by_class[str(target)] = tuple(plain)
    return names_by_class


def bind(mapping: ClassMap | None, model: Sequence[str], labels: Sequence[str]) -> ClassPairs:
    """Bind a mapping (None: equal names) to the classes of model and labels. Raises UsageError."""
    if mapping is None:
        return _bind_by_name(model, labels)
    _refuse_unknown(mapping, {*model, *labels})
    groups: dict[str, tuple[int, ...]] = {}
    label_groups: dict[str, tuple[int, ...]] = {}
    lacking: dict[str, list[str]] = {}
    for target, names in mapping.classes.items():
        of_model, of_labels = (_find_ids(side, (target, *names)) for side in (model, labels))
        if of_model and of_labels:
            groups[target], label_groups[target] = of_model, of_labels
        else:
            lacking.setdefault("labels do" if of_model else "model does", []).append(target)
    if not groups:
        raise UsageError(
            f"{mapping.path}: none of its classes is in both the model ({_shorten(model)}) and the "
            f"labels ({_shorten(labels)}); write a mapping of your own: {EXAMPLE}"
        )
    targets = tuple(groups)
    return ClassPairs(
        targets,
        tuple(groups.values()),
        {label: at for at, target in enumerate(targets) for label in label_groups[target]},
        {
            label: at
            for at, target in enumerate(targets)
            for label in _find_ids(labels, mapping.ignore.get(target, ()))
        },
        tuple(
            f"skipped classes that the {side} not have: {', '.join(names)}"
            for side, names in lacking.items()
        ),
    )


def _find_ids(names: Sequence[str], targets: Iterable[str]) -> tuple[int, ...]:
    targets = set(targets)
    return tuple(at for at, name in enumerate(names) if name in targets)


def _refuse_unknown(mapping: ClassMap, known: set[str]) -> None:
    for group, table in (("classes", mapping.classes), ("ignore", mapping.ignore)):
        for target, names in table.items():
            for name in names:
                if name not in known and name not in mapping.optional:
                    near = difflib.get_close_matches(name, known, 1)
                    hint = f"did you mean {near[0]!r}? " if near else ""
                    raise UsageError(
                        f"{mapping.path}: {group}.{target} lists {name!r}, which neither the "
                        f"model nor the labels have; {hint}remove {name!r}, or write ({name}) if "
                        "it may be absent"
                    )


def _bind_by_name(model: Sequence[str], labels: Sequence[str]) -> ClassPairs:
    targets = tuple(dict.fromkeys(name for name in labels if name in set(model)))
    if not targets:
        raise UsageError(
            f"the model's classes ({_shorten(model)}) and the labels' classes ({_shorten(labels)}) "
            f"have no name in common; map them with --mapping {_suggest_mapping(model, labels)}"
        )
    absent = [name for name in dict.fromkeys(labels) if name not in targets]
    notes = [f"skipped classes that only the labels have: {', '.join(absent)}"] if absent else []
    if absent and (fitting := _suggest_mapping(model, absent)) != "FILE":
        notes[0] += f"; add --mapping {fitting} to also score classes that differ in name"
    return ClassPairs(
        targets,
        tuple(_find_ids(model, (name,)) for name in targets),
        {at: targets.index(name) for at, name in enumerate(labels) if name in targets},
        {},
        tuple(notes),
    )


def _suggest_mapping(model: Sequence[str], labels: Sequence[str]) -> str:
    """Return the first built-in mapping that fits model and labels, or "FILE"."""
    for path in sorted((folder() / "mappings").glob("*.yaml")):
        with suppress(UsageError):
            bind(read_mapping(str(path), path.parent), model, labels)
            return path.stem
    return "FILE"


def _shorten(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
