"""Each ONNX file that we build contains a description of itself, as JSON in its metadata: class
names, input rules, and the arguments that the head's ``Decoder`` stores (layouts/base.py). We check
each value that we read, since another program may have written the file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from detector.core.errors import ModelError
from detector.core.errors.parsing import parse_json, quote
from detector.core.models.base import Dense, Head, InputRules, Network
from detector.core.models.layouts import decoders
from detector.core.models.layouts.base import MAX_CLASSES, MAX_LAYERS, MAX_STRIDE, Decoder, Shape
from detector.core.types import GEOMETRIES

KEY = "detect-video"
VERSION = 2
MAX_TEXT = 200  # characters in a name
LARGEST = 1 << 53

Text = Annotated[str, Meta(min_length=1, max_length=MAX_TEXT)]
Count = Annotated[int, Meta(ge=0, le=LARGEST)]


class OwnFile(msgspec.Struct, frozen=True):
    """A parsed description. ``arguments``: the head's. ``outputs``: names, in the head's order."""

    family: Text
    precision: Text
    geometry: str
    pad_value: int | tuple[int, int, int]  # grey or (red, green, blue); ``_convert`` checks limits
    stride: Annotated[int, Meta(ge=1, le=MAX_STRIDE)]
    names: Annotated[tuple[Text, ...], Meta(min_length=1, max_length=MAX_CLASSES)]
    outputs: Annotated[tuple[Text, ...], Meta(min_length=1, max_length=3 * MAX_LAYERS)]
    needs_nms: bool
    parameters: Count
    parameters_fused: Count
    of_picture: bool
    kind: str
    arguments: dict[str, Any]
    random_seed: Count | None = None

    @property
    def decoder(self) -> Decoder:
        return decoders()[self.kind]

    def head(
        self, origin: object, rules: InputRules, shapes: Sequence[Shape], classes: int
    ) -> tuple[Head, Dense]:
        """Return the head and its ``dense``. Raises ModelError if the shapes do not fit."""
        arguments = self.decoder.at_size(self.arguments, rules)
        if not self.decoder.fits(shapes, arguments, rules, classes):
            listed = ", ".join("x".join(map(str, shape)) for shape in shapes)
            raise _damaged(origin, f"its outputs {listed} do not fit its {self.kind} head")
        return self.decoder.heads(arguments, classes)


def describe(network: Network) -> str | None:
    """Return the description of a network as JSON; None if no decoder has its head."""
    head = network.head
    function, arguments = (head.func, head.keywords) if isinstance(head, partial) else (head, {})
    decoder = next((each for each in decoders().values() if each.head is function), None)
    if decoder is None:
        return None
    content = {
        "version": VERSION,
        "family": network.family,
        "precision": network.precision,
        "geometry": network.input.geometry,
        "pad_value": network.input.pad_value,
        "of_picture": network.input.of_picture,
        "stride": network.input.stride,
        "names": network.names,
        "outputs": [info.name for info in network.graph.graph.output],
        "needs_nms": network.needs_nms,
        "parameters": network.parameters,
        "parameters_fused": network.parameters_fused,
        "random_seed": network.random_seed,
        "kind": decoder.name,
        "arguments": decoder.store(arguments),
    }
    return json.dumps(content, default=float)


def write_description(network: Network) -> None:
    others = [entry for entry in network.graph.metadata_props if entry.key != KEY]
    text = describe(network)
    del network.graph.metadata_props[:]
    network.graph.metadata_props.extend(others)
    if text is not None:
        network.graph.metadata_props.add(key=KEY, value=text)


def parse_description(text: str, origin: object) -> OwnFile:
    content = parse_json(text, origin, ModelError, cure="build it again")
    version = content.get("version") if isinstance(content, dict) else None
    if isinstance(version, int) and version > VERSION:
        raise ModelError(f"{origin}: a newer detect-video wrote it; update detect-video")
    if version != VERSION:
        raise _damaged(origin, f"version {quote(version)}")
    own = _convert(origin, content)
    decoder = decoders().get(own.kind)
    if decoder is None:
        raise _damaged(origin, f"kind {quote(own.kind)}")
    if own.geometry not in GEOMETRIES:
        raise _damaged(origin, f"geometry {quote(own.geometry)}")
    if not set(own.arguments) <= set(decoder.arguments):
        raise _damaged(origin, f"arguments {quote(own.arguments)}")
    try:
        arguments = decoder.restore(own.arguments)
    except ValueError as exc:
        raise _damaged(origin, str(exc)) from exc
    return msgspec.structs.replace(own, arguments=arguments)


def _convert(origin: object, content: Mapping[str, Any]) -> OwnFile:
    try:
        own = msgspec.convert(content, OwnFile)
    except msgspec.ValidationError as exc:
        raise _damaged(origin, str(exc)) from exc
    # msgspec 0.22 crashes at garbage collection if the type, a union with a tuple, has limits.
    pad = own.pad_value
    if not all(0 <= value <= 255 for value in ((pad,) if isinstance(pad, int) else pad)):
        raise _damaged(origin, f"pad_value {quote(pad)}")
    for key, text in _texts(own):
        if not text.isprintable():
            raise _damaged(origin, f"{key} {quote(content.get(key))}")
    return own


def _texts(own: OwnFile) -> Iterator[tuple[str, str]]:
    yield "family", own.family
    yield "precision", own.precision
    yield from (("names", name) for name in own.names)
    yield from (("outputs", name) for name in own.outputs)


def _damaged(origin: object, what: str) -> ModelError:
    return ModelError(f"{origin}: its detect-video metadata is damaged: {what}; build it again")
