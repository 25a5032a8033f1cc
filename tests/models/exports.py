"""Small graphs with the outputs of each family's exports. Their answers are known.

The scores of classes 0, 1 and 2 are the picture's largest red, green and blue in 0..1. (YOLOX reads
BGR in 0..255, so its classes are blue, green, red.) Boxes are constant.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

SIDE = 64  # pixels of the input: 84 cells at strides 8, 16 and 32
CELLS = 84
TINY_CELLS = 20  # cells at strides 16 and 32
BOXES = ((20.0, 30.0, 10.0, 20.0), (44.0, 20.0, 16.0, 8.0))  # cx, cy, w, h
CORNERS = ((15.0, 20.0, 25.0, 40.0), (36.0, 16.0, 52.0, 24.0))
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
STATED = {"names": "{0: 'red', 1: 'green', 2: 'blue'}", "stride": "32", "task": "detect"}


class Export:
    def __init__(
        self,
        *,
        batch: int | str = 1,
        side: int | str = SIDE,
        kind: str = "FLOAT",
        opset: int = 17,
        pixels: str = "",
        scale: float = 1.0,
    ) -> None:
        """``pixels``: the kind of input. "": 0..1. "baked": 0..255, which the graph divides by 255.
        "u8", "u8-nhwc": bytes, which are also divided. "chw": 0..1 without a batch axis. The others
        get 0..1, too, and the graph begins with a change: "normalised" normalises as for ImageNet,
        "turned" and "flipped" turn BGR into RGB, "convolved" multiplies by ``scale`` in a Conv."""
        from onnx import TensorProto, helper

        self.kind = getattr(TensorProto, kind)
        self.dtype = {"FLOAT": np.float32, "FLOAT16": np.float16}[kind]
        self.opset = opset
        sides = [batch, side, side, 3] if pixels == "u8-nhwc" else [batch, 3, side, side]
        sides = sides[1:] if pixels == "chw" else sides
        given = TensorProto.UINT8 if pixels.startswith("u8") else self.kind
        self.inputs = [helper.make_tensor_value_info("images", given, sides)]
        self.nodes: list = []
        self.constants: list = []
        self.outputs: list = []
        self.picture = "images"
        if pixels == "chw":
            self.picture = self.add("Unsqueeze", "images", self.ints(0))
        if pixels.startswith("u8"):
            self.picture = self.add("Cast", "images", to=self.kind)
        if pixels == "u8-nhwc":
            self.picture = self.add("Transpose", self.picture, perm=[0, 3, 1, 2])
        if pixels == "turned":
            self.picture = self.add("Gather", self.picture, self.ints(2, 1, 0), axis=1)
        if pixels == "flipped":
            bounds = (self.ints(v) for v in (-1, -(2**63) + 1, 1, -1))
            self.picture = self.add("Slice", self.picture, *bounds)
        if pixels == "convolved":
            weights = scale * np.eye(3).reshape(3, 3, 1, 1)
            self.picture = self.add("Conv", self.picture, self.const(weights))
        if pixels == "baked":
            self.picture = self.add("Mul", self.picture, self.const([1 / 255]))
        if pixels.startswith("u8"):
            self.picture = self.add("Div", self.picture, self.const([255.0]))
        if pixels == "normalised":  # undo the normalisation afterwards, so that colours stay known
            mean, deviation = ([[[[v]] for v in (a, b, c)]] for a, b, c in IMAGENET)
            self.picture = self.add("Sub", self.picture, self.const(mean))
            self.picture = self.add("Div", self.picture, self.const(deviation))
            kept = self.add("Relu", self.add("Neg", self.add("Neg", self.picture)))
            back = self.add("Mul", kept, self.const(deviation))
            self.picture = self.add("Add", back, self.const(mean))

    def const(self, values, dtype=None) -> str:
        from onnx import numpy_helper

        name = f"c{len(self.constants)}"
        self.constants.append(
            numpy_helper.from_array(np.asarray(values, dtype or self.dtype), name)
        )
        return name

    def ints(self, *values: int) -> str:
        return self.const(list(values), np.int64)

    def cut(self, tensor: str, start: int, end: int, axis: int) -> str:
        bounds = self.ints(start), self.ints(end), self.ints(axis)
        return self.add("Slice", tensor, *bounds)

    def add(self, operator: str, *inputs: str, name: str = "", outputs: int = 1, **attributes):
        from onnx import helper

        tensors = [f"t{len(self.nodes)}_{at}" for at in range(outputs)]
        name = name or f"/model.9/{operator}_{len(self.nodes)}"
        self.nodes.append(
            helper.make_node(operator, list(inputs), tensors, name=name, **attributes)
        )
        return tensors[0] if outputs == 1 else tensors

    def out(
        self, name: str, tensor: str, dims: Sequence[int | str | None] | None = None, kind: int = 0
    ) -> Export:
        from onnx import helper

        self.nodes.append(helper.make_node("Identity", [tensor], [name], name=f"/{name}/Identity"))
        self.outputs.append(helper.make_tensor_value_info(name, kind or self.kind, dims))
        return self

    def save(
        self, path: Path, metadata: dict[str, str] | None = None, domains: Sequence[str] = ()
    ) -> str:
        import onnx
        from onnx import helper

        graph = helper.make_graph(
            self.nodes, "exported", self.inputs, self.outputs, initializer=self.constants
        )
        opsets = [
            helper.make_opsetid("", self.opset),
            *(helper.make_opsetid(domain, 1) for domain in domains),
        ]
        model = helper.make_model(
            graph, opset_imports=opsets, ir_version=8, producer_name="pytorch"
        )
        helper.set_model_props(model, metadata or {})
        model = onnx.shape_inference.infer_shapes(model)  # exporters write the shapes of outputs
        onnx.save(model, str(path))
        return str(path)

    def add_input(self, name: str, dims: Sequence[int | str], kind: str = "FLOAT") -> str:
        """Add an input in addition to the picture; return its name."""
        from onnx import TensorProto, helper

        self.inputs.append(
            helper.make_tensor_value_info(name, getattr(TensorProto, kind), list(dims))
        )
        return name

    def every_second(self, top: str, left: str) -> str:
        """Return every second row and column of the picture, as YOLOX's Focus takes them."""
        part = self.picture
        for axis, start in ((2, int(top)), (3, int(left))):
            bounds = (self.ints(value) for value in (start, 2**31 - 1, axis, 2))
            part = self.add("Slice", part, *bounds)
        return part

    # ---- parts that several families share

    def sampled_zero(self) -> str:
        """Return a zero [1, 1, 1] from a GridSample, the operator that marks RT-DETR."""
        grid = self.const(np.zeros((1, 1, 1, 2)), np.float64)  # float64, as in Deformable-DETR
        largest = self.add("ReduceMax", self.add("GridSample", "images", grid), axes=[1, 2, 3])
        return self.add("Mul", self.add("Reshape", largest, self.ints(-1, 1, 1)), self.const([0.0]))

    def colours(self) -> str:
        """Return the largest red, green and blue, [B, 1, 3]."""
        largest = self.add("GlobalMaxPool", self.picture)
        return self.add("Reshape", largest, self.ints(-1, 1, 3))

    def zeros(self, colours: str) -> str:
        """Return zeros [B, 1, 1] that depend on the picture, like outputs of a traced network."""
        return self.add("Mul", self.cut(colours, 0, 1, axis=2), self.const([0.0]))

    def table(self, colours: str, rows: Sequence[Sequence[float]], count: int) -> str:
        """Return [B, count, columns]: ``rows``, followed by zeros."""
        values = np.zeros((1, count, len(rows[0])))
        values[0, : len(rows)] = rows
        return self.add("Add", self.zeros(colours), self.const(values))

    def scores(self, colours: str, filled: int, count: int) -> str:
        mask = np.zeros((1, count, 1))
        mask[0, :filled] = 1
        return self.add("Mul", colours, self.const(mask))


def decoded(count: int = 3 * CELLS, objectness: float = 0.5, **more) -> Export:
    """Make the output of YOLOv5 and YOLOv7, [B, N, 5 + 3]."""
    export = Export(**more)
    colours = export.colours()
    table = export.table(colours, [(*box, objectness) for box in BOXES], count)
    both = export.add("Concat", table, export.scores(colours, 2, count), axis=2)
    return export.out("output0", both)


def anchor_free(rows: bool = False, twins: bool = False, cells: int = CELLS, **more) -> Export:
    """Make YOLOv8, 9 or 11: [B, 4 + 3, cells]. ``twins``: two boxes of one size, a pixel apart."""
    export = Export(**more)
    boxes = [BOXES[0], (21.0, *BOXES[0][1:])] if twins else list(BOXES)
    colours = export.colours()
    table = export.table(colours, boxes, cells)
    both = export.add("Concat", table, export.scores(colours, 2, cells), axis=2)
    return export.out("output0", both if rows else export.add("Transpose", both, perm=[0, 2, 1]))


def finished(columns: int = 6, count: int = 300, **more) -> Export:
    """Make YOLOv10 or YOLO26: [B, 300, 6] with two equal boxes of class 2, scored by red."""
    export = Export(**more)
    colours = export.colours()
    boxes = export.table(colours, [CORNERS[0]] * 2, count)
    red = export.cut(export.scores(colours, 2, count), 0, 1, axis=2)
    classes = export.table(colours, [(2.0,)] * 2, count)
    return export.out("output0", export.add("Concat", boxes, red, classes, axis=2))


def best_cells(slices: bool = False, **more) -> Export:
    """Make YOLOv10's end: GatherElements takes the boxes and scores of TopK's ten best cells."""
    export = Export(**more)
    colours = export.colours()
    table, scores = export.table(colours, CORNERS, CELLS), export.scores(colours, 2, CELLS)
    both = export.add("Concat", table, scores, axis=2)
    if slices:
        parts = [export.cut(both, *bounds, axis=2) for bounds in ((0, 4), (4, 7))]
    else:
        parts = export.add("Split", both, export.ints(4, 3), outputs=2, axis=-1)
    best = export.add("ReduceMax", parts[1], axes=[2], keepdims=0)
    _, cells = export.add("TopK", best, export.ints(10), outputs=2)
    at = export.add("Unsqueeze", cells, export.ints(-1))
    boxes, scores = (
        export.add("GatherElements", part, export.add("Tile", at, export.ints(1, 1, side)), axis=1)
        for part, side in zip(parts, (4, 3), strict=True)
    )
    score = export.add("ReduceMax", scores, axes=[2])
    number = export.add("Cast", export.add("ArgMax", scores, axis=2), to=export.kind)
    return export.out("output0", export.add("Concat", boxes, score, number, axis=2))


def nms_inside(**more) -> Export:
    """Make YOLOv7 with ONNX's NMS: [K, 7] (batch, box, class, score). Only a run determines K."""
    export = Export(**more)
    colours = export.colours()
    boxes = export.table(colours, [CORNERS[0], CORNERS[0], CORNERS[1]], 8)
    scores = export.add("Transpose", export.scores(colours, 3, 8), perm=[0, 2, 1])
    limits = [export.ints(100)]
    limits += [export.const([at], np.float32) for at in (0.45, 0.25)]
    chosen = export.add("NonMaxSuppression", boxes, scores, *limits)
    at = [
        export.add("Gather", chosen, export.ints(place), axis=1) for place in range(3)
    ]  # batch, class, box: [K, 1] each
    box_at = export.add("Reshape", at[2], export.ints(-1))
    rows = export.add("Gather", export.add("Reshape", boxes, export.ints(8, 4)), box_at, axis=0)
    pair = export.add("Concat", at[1], at[2], axis=1)
    flat = export.add("Reshape", scores, export.ints(3, 8))
    picked = export.add("Unsqueeze", export.add("GatherND", flat, pair), export.ints(1))
    floats = [export.add("Cast", name, to=export.kind) for name in at[:2]]
    return export.out(
        "output", export.add("Concat", floats[0], rows, floats[1], picked, axis=1), [None, 7]
    )


def padded(**more) -> Export:
    """Make Ultralytics' export with NMS, [B, 300, 6]; shape inference does not find the 300."""
    export = Export(**more)
    colours = export.colours()
    boxes = export.table(colours, CORNERS, 8)
    scores = export.add("Transpose", export.scores(colours, 2, 8), perm=[0, 2, 1])
    limits = [export.ints(100)]
    limits += [export.const([at], np.float32) for at in (0.45, 0.25)]
    chosen = export.add("NonMaxSuppression", boxes, scores, *limits)
    box_at = export.add("Gather", chosen, export.const(2, np.int64), axis=1)
    number = export.add(
        "Cast", export.add("Gather", chosen, export.ints(1), axis=1), to=export.kind
    )
    rows = export.add("Gather", export.add("Reshape", boxes, export.ints(8, 4)), box_at, axis=0)
    score = export.add(
        "GatherND",
        export.add("Reshape", scores, export.ints(3, 8)),
        export.cut(chosen, 1, 3, axis=1),
    )
    found = export.add(
        "Concat", rows, export.add("Unsqueeze", score, export.ints(1)), number, axis=1
    )
    none = export.ints(0)
    count = export.add("Gather", export.add("Shape", found), none, axis=0)
    missing = export.add("Sub", export.ints(300), count)
    filled = export.add("Pad", found, export.add("Concat", none, none, missing, none, axis=0))
    return export.out("output0", export.add("Unsqueeze", filled, none), [1, 300, 6])


def parts(count: int = 100, **more) -> Export:
    """Make finished detections in four outputs: a count, boxes, scores, and integer classes."""
    from onnx import TensorProto

    export = Export(**more)
    colours = export.colours()
    boxes = export.table(colours, CORNERS, count)
    red = export.cut(export.scores(colours, 2, count), 0, 1, axis=2)
    flat = export.ints(-1, count)
    classes = export.add("Reshape", export.table(colours, [(1.0,), (2.0,)], count), flat)
    number = export.add(
        "Cast",
        export.add(
            "Gemm",
            export.add("Reshape", export.zeros(colours), export.ints(-1, 1)),
            export.const([[1.0]]),
        ),
        to=TensorProto.INT32,
    )
    export.out("num_dets", number, None, TensorProto.INT32)
    export.out("det_boxes", boxes)
    export.out("det_scores", export.add("Reshape", red, flat))
    return export.out(
        "det_classes", export.add("Cast", classes, to=TensorProto.INT32), None, TensorProto.INT32
    )


def queries(joined: bool = False, numbered: bool = False, **more) -> Export:
    """Make RT-DETR: boxes in 0..1, and logits (10 x colour - 5). ``joined``: one output, boxes
    and the colours as scores. ``numbered``: one output, boxes with the best score and its class."""
    export = Export(**more)
    zero = export.sampled_zero()
    colours = export.add("Add", export.colours(), zero)
    boxes = export.table(colours, [tuple(v / SIDE for v in box) for box in BOXES], 30)
    scores = export.scores(colours, 2, 30)
    if joined:
        return export.out("output0", export.add("Concat", boxes, scores, axis=2))
    if numbered:
        from onnx import TensorProto

        best = export.add("ReduceMax", scores, axes=[2])
        which = export.add("ArgMax", scores, axis=2)
        number = export.add("Cast", which, to=TensorProto.FLOAT)
        return export.out("output0", export.add("Concat", boxes, best, number, axis=2))
    ten = export.add("Mul", scores, export.const([10.0]))
    export.out("pred_boxes", boxes)
    return export.out("pred_logits", export.add("Sub", ten, export.const([5.0])))


def deployed(batch: int | str = 1, name: str = "orig_target_sizes", **more) -> Export:
    """Make RT-DETR, D-FINE or DEIM as their own exporters do: labels, boxes, scores. Boxes are in
    pixels of a picture whose size is a second input. A query gives a detection per class.

    Lengths after TopK are computed from shapes, so shape inference does not even find the rank.
    """
    from onnx import TensorProto

    export = Export(batch=batch, **more)
    sizes = export.add_input(name, [batch, 2], "INT64")
    colours = export.colours()
    unit = export.table(colours, [tuple(v / SIDE for v in box) for box in CORNERS], 30)
    four = export.add("Tile", sizes, export.ints(1, 2))
    four = export.add("Cast", export.add("Unsqueeze", four, export.ints(1)), to=1)
    boxes = export.add("Mul", unit, four)
    flat = export.add("Reshape", export.scores(colours, 2, 30), export.ints(0, -1))
    scores, at = export.add("TopK", flat, export.ints(30), outputs=2)
    three = export.ints(3)
    query = export.add("Div", at, three)
    labels = export.add("Sub", at, export.add("Mul", query, three))
    columns = export.add("Unsqueeze", query, export.ints(2))
    shape = export.add("Concat", export.add("Shape", at), export.ints(4), axis=0)
    ones = export.add("ConstantOfShape", export.add("Shape", shape))
    wide = export.add("Cast", export.add("Add", ones, export.const([1.0], np.float32)), to=7)
    asked = export.add("Where", export.add("Equal", shape, wide), wide, shape)
    chosen = export.add("GatherElements", boxes, export.add("Expand", columns, asked), axis=1)
    export.out("labels", labels, None, TensorProto.INT64)
    export.out("boxes", chosen)
    return export.out("scores", scores)


def corners(**more) -> Export:
    """Make YOLOv4 as pytorch-YOLOv4 does: boxes [B, N, 1, 4] in 0..1, scores [B, N, 3]."""
    export = Export(**more)
    colours = export.colours()
    rows = 3 * CELLS
    boxes = export.table(colours, [tuple(v / SIDE for v in box) for box in CORNERS], rows)
    apart = export.add("Reshape", boxes, export.ints(-1, rows, 1, 4))
    export.out("boxes", apart)
    return export.out("confs", export.scores(colours, 2, rows))


def yolox(decode: bool = False, focus: bool = False, **more) -> Export:
    """Make YOLOX's raw rows [B, 84, 5 + 3]: offsets are 0.5, sizes are two cells.

    A class score is the logistic of (a channel's mean - 127.5) / 8. The objectness is 0.88 in the
    first map and almost 0 elsewhere. ``focus``: begin with a Focus (every second pixel becomes a
    channel), and make the objectness depend on each pixel.
    """
    export = Export(**more)
    fold, picture, maps = 1, "images", []
    if focus:
        fold, picture = 2, export.add("Concat", *map(export.every_second, "0101", "0011"), axis=1)
    for stride in (8, 16, 32):
        weights = np.zeros((8, 3 * fold * fold, stride // fold, stride // fold))
        for channel in range(3):
            weights[5 + channel, channel::3] = 1 / (8 * stride * stride)
        if focus:
            weights[4] = np.linspace(-1e-3, 1e-3, weights[4].size).reshape(weights[4].shape)
        bias = [0.5, 0.5, np.log(2), np.log(2), 2.0 if stride == 8 else -9.0, *[-127.5 / 8] * 3]
        raw = export.add(
            "Conv", picture, export.const(weights), export.const(bias), strides=[stride // fold] * 2
        )
        box, rest = export.add("Split", raw, export.ints(4, 4), outputs=2, axis=1)
        whole = export.add("Concat", box, export.add("Sigmoid", rest), axis=1)
        maps.append(export.add("Reshape", whole, export.ints(1, 8, -1)))
    rows = export.add("Transpose", export.add("Concat", *maps, axis=2), perm=[0, 2, 1])
    if not decode:
        return export.out("output", rows)
    strides = np.repeat([8, 16, 32], [64, 16, 4])[None, :, None]
    grid = np.concatenate(
        [np.stack(np.indices((n, n))[::-1], -1).reshape(-1, 2) for n in (8, 4, 2)]
    )[None]
    centres, sizes, scores = export.add("Split", rows, export.ints(2, 2, 4), outputs=3, axis=2)
    centres = export.add(
        "Mul", export.add("Add", centres, export.const(grid)), export.const(strides)
    )
    sizes = export.add("Mul", export.add("Exp", sizes), export.const(strides))
    return export.out("output", export.add("Concat", centres, sizes, scores, axis=2))
