"""One file for each layout of outputs: what its columns mean, how we recognise it, its head.

A new layout is one file here with a ``LAYOUT`` (base.py). The number of rows tells most layouts
apart: 3 boxes per cell, 1 box per cell, or a few hundred detections. If two layouts have the same
shape, the nodes of the graph (formats/onnx/evidence.py) or the header of a plan decide.
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
    """Return name -> layout, in the order in which they are tried."""
    modules = wings.import_files(__name__, *__path__)
    ordered: list[Layout] = [module.LAYOUT for module in modules if hasattr(module, "LAYOUT")]
    ordered.sort(key=lambda layout: (layout.order, layout.name))
    return MappingProxyType({layout.name: layout for layout in ordered})


@cache
def decoders() -> Mapping[str, Decoder]:
    every = [decoder for layout in layouts().values() for decoder in layout.decoders]
    return MappingProxyType({decoder.name: decoder for decoder in every})
