"""Raw maps of YOLOv5 and YOLOv7, as our own builders of their networks write them."""

from __future__ import annotations

from detector.core.models.layouts.base import Layout
from detector.core.models.layouts.maps import MapsDecoder
from detector.core.stages.heads import AnchoredLayer, anchor_maps, anchor_maps_dense


class AnchorMaps(Layout):
    name = "anchor-maps"
    decoders = (
        MapsDecoder(
            "anchor-maps",
            anchor_maps,
            anchor_maps_dense,
            AnchoredLayer,
            lambda layer: (layer.stride, layer.stride),
        ),
    )


LAYOUT = AnchorMaps()
