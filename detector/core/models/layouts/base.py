"""``Layout`` declares a layout, ``Bound`` is its match in a file, ``Decoder`` decodes outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from detector.core.models.base import Dense, Head, InputRules
from detector.core.stages.readings import Reading, list_dense, read_list, read_rows, rows_dense

if TYPE_CHECKING:
    from detector.core.models.formats.onnx.evidence import Evidence
    from detector.core.models.layouts.plans import ReadyMade

MAX_CLASSES = 100_000
MAX_LAYERS = 16
MAX_STRIDE = 1024

Shape = tuple[int, ...]


class Decoder:
    """Decodes outputs: ``head`` into candidates, ``dense`` into all rows. Our files store the
    arguments of both. ``watched``: runs check for impossible results, as the head may be wrong."""

    name: str
    head: Callable[..., Any]
    dense: Callable[..., Any]
    arguments: tuple[str, ...]  # names of the head's arguments that are stored
    watched = False

    def heads(self, arguments: Mapping[str, Any], classes: int) -> tuple[Head, Dense]:
        return partial(self.head, **arguments), partial(self.dense, **arguments)

    def store(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments for JSON, without the input size, which a later run may change."""
        raise NotImplementedError

    def restore(self, content: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments that ``store`` stored. Raises ValueError if they are invalid."""
        raise NotImplementedError

    def at_size(self, arguments: Mapping[str, Any], rules: InputRules) -> Mapping[str, Any]:
        return arguments

    def fits(
        self, shapes: Sequence[Shape], arguments: Mapping[str, Any], rules: InputRules, classes: int
    ) -> bool:
        raise NotImplementedError


class JoinedOutput(NamedTuple):
    """An output [batch, rows, columns] that joins the tables or maps of all strides."""

    levels: tuple[str, ...]
    rows: int
    columns: int


@dataclass(frozen=True, slots=True)
class Bound:
    """A layout, or a description, matched with the outputs of a file.

    ``reading``: how the outputs are read; None if ``decoder`` with ``arguments`` reads them.
    ``bare``: outputs without a batch axis. ``family``: its preprocessing applies if the file names
    no family. ``joined``: new output -> the outputs that it joins (one for each stride).
    """

    reading: Reading | None
    outputs: tuple[str, ...]
    bare: frozenset[str]
    classes: int | None
    needs_nms: bool
    strides: tuple[int, ...] = ()
    family: str = ""
    decoder: Decoder | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    geometry: str | None = None
    pad_value: int | tuple[int, int, int] = 114
    joined: Mapping[str, JoinedOutput] = field(default_factory=dict)

    def heads(self, classes: int) -> tuple[Head, Dense]:
        if self.decoder is not None:
            return self.decoder.heads(self.arguments, classes)
        assert self.reading is not None
        return heads_of(self.reading, classes)


Example = tuple[Bound, list[Shape]]
"""A match, and the shapes of the outputs that it reads."""


def heads_of(reading: Reading, classes: int) -> tuple[Head, Dense]:
    if reading.classes is None:
        return partial(read_rows, reading=reading), partial(rows_dense, reading=reading)
    dense = partial(list_dense, reading=reading, classes=classes)
    return partial(read_list, reading=reading), dense


class Layout:
    """A format in which exporters write a detector's outputs.

    ``order``: lower numbers are tried first. ``needs_nms``: whether an object may get
    several boxes. ``decoders``: its own decoders, if no ``Reading`` can describe it.
    """

    name: str
    shape: str = ""
    order = 50
    usual_family = ""
    needs_nms = True
    decoders: tuple[Decoder, ...] = ()

    def in_graph(self, evidence: Evidence) -> Bound | None:
        """Return the match with a graph whose nodes are known; None if it does not match."""
        return None

    def in_plan(self, plan: ReadyMade) -> Bound | None:
        return None

    def is_named(self, plan: ReadyMade) -> bool:
        return False

    def doubt(self, evidence: Evidence, bound: Bound) -> str | None:
        """Return why the graph contradicts this layout, or None."""
        return None

    def examples(self, height: int, width: int, classes: int) -> Iterator[Example]:
        """Yield outputs in each form of the layout, for tests/conformance/test_heads.py."""
        raise NotImplementedError

    def bind(
        self,
        reading: Reading | None,
        outputs: tuple[str, ...],
        classes: int | None,
        *,
        bare: bool = False,
        family: str | None = None,
        **fields: Any,
    ) -> Bound:
        bare_outputs, family = frozenset(outputs if bare else ()), family or self.usual_family
        nms = self.needs_nms
        return Bound(reading, outputs, bare_outputs, classes, nms, family=family, **fields)
