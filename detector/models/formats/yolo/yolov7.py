"""Blocks of YOLOv7, from its paper (arXiv 2207.02696) and from the names in its state dicts.

RepConv: planned re-parameterised convolution, section 4.1 (RepVGG, arXiv 2101.03697). Implicit layers: YOLOR, arXiv
2105.04206. Auxiliary heads (section 4.2) train the lead head and are left out at inference.
"""

from __future__ import annotations

from detector.models.formats.yolo.blocks import Entry, Planner, Wanted, anchors_a_layer, reorg
from detector.models.formats.yolo.steps import DetectionLayers, Value


def halving_pool(planner: Planner, path: str, inputs: list[Value], wanted: Wanted) -> Value:
    kernel = wanted.row.integer(0, 2, high=31)
    return planner.max_pool(f"{path}.m", inputs[0], kernel, kernel, 0)


def keeping_pool(planner: Planner, path: str, inputs: list[Value], wanted: Wanted) -> Value:
    """Arguments: kernel, stride."""
    kernel = wanted.row.integer(0, 3, high=31)
    return planner.max_pool(f"{path}.m", inputs[0], kernel, wanted.row.integer(1, 1, high=31))


def sppcspc(planner: Planner, path: str, inputs: list[Value], wanted: Wanted) -> Value:
    """Pyramid pooling in one half of a CSP block; the other half is one convolution."""
    if any(argument is not None for argument in wanted.row.arguments[1:]):
        raise wanted.row.error("only the argument for channels is supported")
    x, hidden = inputs[0], wanted.channels
    before = planner.conv(f"{path}.cv1", x, hidden)
    before = planner.conv(f"{path}.cv3", before, hidden, 3)
    before = planner.conv(f"{path}.cv4", before, hidden)
    pools = [
        planner.max_pool(f"{path}.m.{at}", before, kernel) for at, kernel in enumerate((5, 9, 13))
    ]
    after = planner.conv(f"{path}.cv5", planner.concat(f"{path}.pyramid", [before, *pools]), hidden)
    after = planner.conv(f"{path}.cv6", after, hidden, 3)
    past = planner.conv(f"{path}.cv2", x, hidden)
    return planner.conv(
        f"{path}.cv7", planner.concat(f"{path}.cat", [after, past]), wanted.channels
    )


def rep_conv(planner: Planner, path: str, inputs: list[Value], wanted: Wanted) -> Value:
    """Trained as 3x3 + 1x1 (+ the input itself), one 3x3 at inference. Arguments: channels, kernel 3, stride."""
    row = wanted.row
    if row.integer(1, 3) != 3 or row.integer(3, 1, low=0) != 1:
        raise row.error("only kernel 3 with padding 1 is supported")
    activation = row.activation(5, planner.activation)
    stride, groups = row.integer(2, 1, high=8), row.integer(4, 1)
    return planner.convolution(
        path, inputs[0], wanted.channels, 3, stride, 1, groups, activation, form="rep"
    )


def down_c(planner: Planner, path: str, inputs: list[Value], wanted: Wanted) -> Value:
    """Half the size twice: by a convolution and by pooling, side by side. Arguments: channels, repeats 1, scale 2."""
    row, x, half = wanted.row, inputs[0], wanted.channels // 2
    scale = row.integer(2, 2, high=8)
    strided = planner.conv(f"{path}.cv1", x, x.channels)
    strided = planner.conv(f"{path}.cv2", strided, half, 3, scale)
    pooled = planner.max_pool(f"{path}.mp", x, scale, scale, 0)
    pooled = planner.conv(f"{path}.cv3", pooled, half)
    return planner.concat(f"{path}.cat", [strided, pooled])


def shortcut(planner: Planner, path: str, inputs: list[Value], wanted: Wanted) -> Value:
    if len(inputs) != 2:
        raise wanted.row.error(f"adds two layers, {len(inputs)} are given")
    return planner.add(path, *inputs)


def implicit_detect(planner: Planner, path: str, inputs: list[Value], wanted: Wanted) -> Value:
    _lead_head(planner, path, inputs, wanted)
    assert planner.plan.head is not None
    return planner.plan.head.outputs[0]


def auxiliary_detect(planner: Planner, path: str, inputs: list[Value], wanted: Wanted) -> Value:
    """The first half of the inputs is the lead head; the second, m2, only trains."""
    layers = len(inputs) // 2
    if len(inputs) != 2 * layers:
        raise wanted.row.error(
            f"needs as many auxiliary layers as detection layers, {len(inputs)} are given in all"
        )
    anchors = _lead_head(planner, path, inputs[:layers], wanted)
    for at, x in enumerate(inputs[layers:]):
        planner.convolution(
            f"{path}.m2.{at}", x, anchors * (5 + planner.plan.classes), form="plain"
        )
    assert planner.plan.head is not None
    return planner.plan.head.outputs[0]


def _lead_head(planner: Planner, path: str, inputs: list[Value], wanted: Wanted) -> int:
    anchors = anchors_a_layer(planner, inputs, wanted.row)
    outputs = [
        planner.convolution(
            f"{path}.m.{at}",
            x,
            anchors * (5 + planner.plan.classes),
            form="implicit",
            add=f"{path}.ia.{at}.implicit",
            multiply=f"{path}.im.{at}.implicit",
        )
        for at, x in enumerate(inputs)
    ]
    planner.plan.head = DetectionLayers(path, tuple(outputs), anchors)
    return anchors


BLOCKS: dict[str, Entry] = {
    "MP": Entry(halving_pool, scaled=False),
    "SP": Entry(keeping_pool, scaled=False),
    "ReOrg": Entry(reorg, scaled=False),
    "SPPCSPC": Entry(sppcspc),
    "RepConv": Entry(rep_conv),
    "DownC": Entry(down_c),
    "Shortcut": Entry(shortcut, scaled=False),
    "IDetect": Entry(implicit_detect, scaled=False),
    "IAuxDetect": Entry(auxiliary_detect, scaled=False),
}
