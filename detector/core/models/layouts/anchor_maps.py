"""Raw maps of YOLOv5 and YOLOv7, in networks that we build (formats/yolo)."""

from __future__ import annotations

from collections.abc import Iterator

from detector.core.models.layouts.base import Example, Layout
from detector.core.models.layouts.maps import MapsDecoder
from detector.core.stages.anchor_maps import AnchoredLayer, anchor_maps, anchor_maps_dense

DECODER = MapsDecoder(
    "anchor-maps",
    anchor_maps,
    anchor_maps_dense,
    AnchoredLayer,
    lambda layer: (layer.stride, layer.stride),
)


class AnchorMaps(Layout):
    name = "anchor-maps"
    decoders = (DECODER,)

    def examples(self, height: int, width: int, classes: int) -> Iterator[Example]:
        anchors = ((10.0, 13.0), (16.0, 30.0))
        layers = [AnchoredLayer(anchors, classes, stride) for stride in (8, 16)]
        yield DECODER.example(height, width, layers)


LAYOUT = AnchorMaps()
