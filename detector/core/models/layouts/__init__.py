"""The layouts of outputs, one file each: what columns mean, what proves it, and the head for them.

A new layout is one file here with a ``LAYOUT`` (base.py). The number of rows tells most: 3 boxes a
cell, 1 box a cell, or a few hundred detections. Where two layouts have the same shape, the graph
itself is asked (formats/onnx/evidence.py), or the header.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING

from detector.core import wings

if TYPE_CHECKING:
    from detector.core.models.layouts.base import Decoder, Layout


@cache
def layouts() -> Mapping[str, Layout]:
    """Return name -> layout in the order of trial, the best proved first."""
    modules = wings.import_files(__name__, *__path__)
    found: list[Layout] = [module.LAYOUT for module in modules if hasattr(module, "LAYOUT")]
    found.sort(key=lambda layout: (layout.order, layout.name))
    return MappingProxyType({layout.name: layout for layout in found})


@cache
def decoders() -> Mapping[str, Decoder]:
    found = [decoder for layout in layouts().values() for decoder in layout.decoders]
    return MappingProxyType({decoder.name: decoder for decoder in found})
