"""Read YAML with PyYAML, with limits on the content.

Dates stay text. We refuse repeated keys, since one of the values would be lost. We also refuse tags
of types that JSON does not have (``!!python/...``, ``!!binary``).
"""

from __future__ import annotations

from copy import deepcopy
from functools import lru_cache
from typing import Any

import yaml
from yaml.composer import ComposerError
from yaml.constructor import ConstructorError, SafeConstructor

from detector.core.errors import DetectVideoError, UsageError
from detector.core.errors.parsing import LARGEST, MAX_DEPTH, TOO_DEEP, is_text, quote

MAX_NODES = 100_000  # values in a file; the values of an anchor count again for each alias
MAX_DIGITS = 400  # characters of a number
TAG_PREFIX = "tag:yaml.org,2002:"
CACHED_LENGTH = 1 << 16  # characters of the longest text whose content is cached
CACHED_TEXTS = 64


def parse_yaml(
    text: str | bytes, origin: object, error: type[DetectVideoError] = UsageError
) -> Any:
    """Return the content of a YAML text. Raises ``error`` with file and line."""
    try:
        plain = text.decode("utf-8") if isinstance(text, bytes) else text
    except UnicodeDecodeError as exc:
        raise error(f"{origin}: not valid YAML: it is not text in UTF-8") from exc
    try:
        plain = plain.removeprefix("\ufeff")
        return deepcopy(_load_cached(plain)) if len(plain) <= CACHED_LENGTH else _load(plain)
    except yaml.reader.ReaderError as exc:  # a NUL byte or an escape character
        line = plain.count("\n", 0, exc.position) + 1
        number = exc.character if isinstance(exc.character, int) else ord(exc.character)
        raise error(
            f"{origin}:{line}: not valid YAML: the character {number:#04x} is not allowed"
        ) from exc
    except yaml.YAMLError as exc:
        mark = getattr(exc, "problem_mark", None)
        line_text = f":{mark.line + 1}" if mark else ""
        reason = getattr(exc, "problem", None) or "unreadable"
        raise error(f"{origin}{line_text}: not valid YAML: {reason}") from exc
    except RecursionError as exc:
        raise error(f"{origin}: not valid YAML: {TOO_DEEP}") from exc


def _load(text: str) -> Any:
    return yaml.load(text, Loader=BoundedLoader)


# A run reads the packaged files several times. Parsing the default configuration takes 15 ms.
# Copying the result takes a hundredth of that time.
_load_cached = lru_cache(CACHED_TEXTS)(_load)


class BoundedLoader(yaml.SafeLoader):
    """A loader that counts values while it composes them, and raises an error above the limit."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._depth = self._count = self._deepest = 0
        self._extent: dict[int, tuple[int, int]] = {}  # id of a node -> (number of values, depth)

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        mark, before = event.start_mark, self._count
        if isinstance(event, yaml.AliasEvent):
            node = super().compose_node(parent, index)
            if id(node) not in self._extent:
                raise ComposerError(None, None, f"*{event.anchor} contains itself", mark)
            count, depth = self._extent[id(node)]
            self._count_values(count, self._depth + depth, mark)
            return node
        outer, self._deepest = self._deepest, self._depth
        self._depth += 1
        self._count_values(1, self._depth, mark)
        node = super().compose_node(parent, index)
        self._depth -= 1
        self._extent[id(node)] = (self._count - before, self._deepest - self._depth)
        self._deepest = max(outer, self._deepest)
        return node

    def _count_values(self, count: int, depth: int, mark: Any) -> None:
        self._count += count
        self._deepest = max(self._deepest, depth)
        if self._count > MAX_NODES:
            reason = f"more than {MAX_NODES} values, counting aliases each time"
            raise ComposerError(None, None, reason, mark)
        if self._deepest > MAX_DEPTH:
            raise ComposerError(None, None, TOO_DEEP, mark)

    def compose_mapping_node(self, anchor: Any) -> Any:
        node = super().compose_mapping_node(anchor)
        lines: dict[tuple[str, str], int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == f"{TAG_PREFIX}merge":
                continue
            word = (key.tag, key.value)
            if word in lines:
                reason = f"duplicate key {quote(key.value)}, first on line {lines[word]}"
                raise ComposerError(None, None, reason, key.start_mark)
            lines[word] = key.start_mark.line + 1
        return node

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as exc:
            kind = str(node.tag).removeprefix(TAG_PREFIX)[:40]
            value = quote(node.value) if isinstance(node, yaml.ScalarNode) else "this"
            reason = f"{value} is not a valid {kind}"
            raise ConstructorError(None, None, reason, node.start_mark) from exc

    def construct_text(self, node: Any) -> str:
        text = str(self.construct_scalar(node))
        if not is_text(text):
            raise ValueError
        return text

    def construct_integer(self, node: Any) -> int:
        if len(self.construct_scalar(node)) > MAX_DIGITS:
            raise ValueError
        number: int = self.construct_yaml_int(node)
        if not -LARGEST <= number <= LARGEST:
            raise ValueError
        return number

    def construct_float(self, node: Any) -> float:
        if len(self.construct_scalar(node)) > MAX_DIGITS:
            raise ValueError
        return float(self.construct_yaml_float(node))


BoundedLoader.yaml_constructors = {
    f"{TAG_PREFIX}null": SafeConstructor.construct_yaml_null,
    f"{TAG_PREFIX}bool": SafeConstructor.construct_yaml_bool,
    f"{TAG_PREFIX}int": BoundedLoader.construct_integer,
    f"{TAG_PREFIX}float": BoundedLoader.construct_float,
    f"{TAG_PREFIX}str": BoundedLoader.construct_text,
    f"{TAG_PREFIX}seq": SafeConstructor.construct_yaml_seq,
    f"{TAG_PREFIX}map": SafeConstructor.construct_yaml_map,
    None: SafeConstructor.construct_undefined,
}
# Dates stay text: PyYAML would convert them to objects, or fail for a date with day 99.
BoundedLoader.yaml_implicit_resolvers = {
    first: [(tag, word) for tag, word in words if tag != f"{TAG_PREFIX}timestamp"]
    for first, words in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
