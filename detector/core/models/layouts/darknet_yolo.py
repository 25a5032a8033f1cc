"""Raw maps of darknet's [yolo] layers. For a plan, the .cfg of its network states the layers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from detector.core.errors import ModelError
from detector.core.models.layouts.base import Bound, Example, Layout
from detector.core.models.layouts.maps import MapsDecoder
from detector.core.stages.heads import YoloLayer, darknet_yolo, darknet_yolo_dense

if TYPE_CHECKING:
    from detector.core.models.layouts.plans import ReadyMade

DECODER = MapsDecoder(
    "darknet-yolo",
    darknet_yolo,
    darknet_yolo_dense,
    YoloLayer,
    lambda layer: (layer.cell_width, layer.cell_height),
)


class DarknetYolo(Layout):
    name = "darknet"
    order = 0
    decoders = (DECODER,)

    def is_named(self, plan: ReadyMade) -> bool:
        return plan.cfg is not None

    def in_plan(self, plan: ReadyMade) -> Bound | None:
        """Match maps with layers by shape, because a plan does not preserve the maps' order."""
        if plan.cfg is None:
            return None
        from detector.core.models.formats.darknet import describe
        from detector.core.models.formats.darknet.cfg import read_cfg
        from detector.core.models.formats.darknet.layers import read_architecture

        sections, _ = read_cfg(plan.cfg)
        architecture = read_architecture(sections, size=(plan.height, plan.width), batch=plan.batch)
        outputs = []
        for yolo in architecture.yolos:
            shape = (len(yolo.anchors) * (5 + yolo.classes), yolo.height, yolo.width)
            fitting = [name for name, dims in plan.outputs().items() if dims[1:] == shape]
            if len(fitting) != 1:
                raise ModelError(
                    f"{plan.path}: {plan.cfg.name} says that one output is "
                    f"{'x'.join(map(str, shape))} per picture, but the plan has {plan.listed()}; "
                    "was the plan built from this cfg?"
                )
            outputs += fitting
        about = describe(architecture)
        return self.bind(
            None,
            tuple(outputs),
            architecture.yolos[0].classes,
            decoder=DECODER,
            arguments={"layers": about.layers},
            geometry=about.input.geometry,
            pad_value=about.input.pad_value,
        )

    def examples(self, height: int, width: int, classes: int) -> Iterator[Example]:
        anchors = ((10.0, 14.0), (23.5, 27.0), (37.0, 58.0))
        layers = [YoloLayer(anchors, classes, cell, cell, 1.05) for cell in (8.0, 16.0)]
        yield DECODER.example(height, width, layers)


LAYOUT = DarknetYolo()
