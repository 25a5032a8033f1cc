"""Select the detections that a run keeps: thresholds, and classes by name or id."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import SupportsFloat

from detector.core.config.schema import Config
from detector.core.errors import UsageError
from detector.core.errors.text import counted, join_list

# Class name of COCO -> class name of the default model.
KIND_OF = {"car": "vehicle", "truck": "vehicle", "bus": "vehicle", "van": "vehicle"}


@dataclass(frozen=True, slots=True)
class Selection:
    """Thresholds and classes. ``given``: --classes as given. ``classes``: the ids of those classes,
    which ``with_network`` sets; None selects all classes."""

    conf: float
    iou: float
    max_det: int
    agnostic: bool
    given: tuple[str, ...] | None
    classes: tuple[int, ...] | None = None

    @classmethod
    def of(cls, config: Config) -> Selection:
        given = config.selection
        return cls(given.conf, given.iou, given.max_det, given.agnostic, given.classes)

    def with_network(self, names: Sequence[str]) -> Selection:
        """Look up --classes in the network's ``names``. Raises UsageError for an unknown class."""
        return replace(self, classes=class_ids("--classes", self.given, names))

    def changed(
        self, conf: float | None, classes: Sequence[str | int] | None, names: Sequence[str]
    ) -> Selection:
        """Return a copy with the values that are not None. Raises UsageError for a wrong value."""
        changed = self
        if conf is not None:
            if not isinstance(conf, SupportsFloat) or not 0 <= float(conf) <= 1:
                raise UsageError(
                    f"conf={conf}: a confidence threshold must be a number from 0 to 1"
                )
            changed = replace(changed, conf=conf)
        if classes is not None:
            listed = classes if isinstance(classes, Iterable) else [classes]
            given = [classes] if isinstance(classes, str) else [str(item) for item in listed]
            changed = replace(changed, classes=class_ids("classes", given, names))
        return changed


def class_ids(
    flag: str, given: Sequence[str] | None, names: Sequence[str]
) -> tuple[int, ...] | None:
    """Return the ids of classes given by name or id. Raises UsageError, which names ``flag``."""
    if given is None:
        return None
    ids = []
    for item in given:
        if item in names:
            ids.append(names.index(item))
        elif item.isdecimal() and int(item) < len(names):
            ids.append(int(item))
        else:
            kinds = (item, KIND_OF.get(item, ""))
            near = [
                name for kind in kinds for name in difflib.get_close_matches(kind, names, 3, 0.5)
            ]
            near = [name for name in names if _is_part_of(name, item)][:3] or near
            hint = (
                f"did you mean {' or '.join(map(_quote_for_shell, near))}?"
                if near
                else f"the model has {counted(len(names), 'class')}: {', '.join(names[:10])}"
            )
            others = "..." if len(names) > 10 else "; to list models, run: detect-video models"
            raise UsageError(f"{flag} {item}: unknown class; {hint}{'' if near else others}")
    return tuple(ids)


def _is_part_of(name: str, item: str) -> bool:
    """Return whether ``name`` contains commas, and ``item`` is a part before one of them."""
    return item in [part.strip() for part in name.split(",")[:-1]]


def _quote_for_shell(name: str) -> str:
    text = join_list([name])
    return text if text == name else f"'{text}'"
