"""Fixed shapes for a graph from elsewhere: the size and batch that were asked for, or the file's own."""

from __future__ import annotations

from detector.errors import ModelError
from detector.models.onnx_file.fold import fold
from detector.models.onnx_file.foreign import ForeignGraph
from detector.models.onnx_file.load import described
from detector.models.onnx_file.metadata import Metadata
from detector.models.onnx_file.rebatch import rebatch
from detector.models.onnx_file.resize import refuse_fixed_sizes

STRIDE = 32
MAX_SIDE = 8192

Size = tuple[int, int]  # height, width


def settle_shapes(graph: ForeignGraph, metadata: Metadata, size: Size | None, batch: int) -> tuple[bool, Size]:
    """Folds the graph at (height, width) and batch; returns whether it reads NCHW, and its size.

    A free dimension takes what was asked for; a fixed one is changed only where that is proven right. Raises
    ModelError.
    """
    planar = _planar(graph)
    dims = graph.input.type.tensor_type.shape.dim
    spatial = (2, 3) if planar else (1, 2)
    own = tuple(dims[at].dim_value for at in spatial)  # 0: free
    height, width = _wanted(graph, metadata, size, (own[0], own[1]))
    own_batch = dims[0].dim_value
    values = {0: own_batch or batch, 1 if planar else 3: 3, spatial[0]: height, spatial[1]: width}
    for at, value in values.items():
        dims[at].ClearField("dim_param")
        dims[at].dim_value = value
    if _changed((height, width), own) or own_batch not in (0, batch):
        graph.declared.clear()
    try:
        fold(graph)
    except ModelError as exc:
        if _changed((height, width), own):
            raise ModelError(
                f"{graph.name}: the file is fixed at {own[1]}x{own[0]} and does not fit {width}x{height} ({exc}); "
                f"export it at {width}x{height}, or with dynamic sizes"
            ) from exc
        raise
    if _changed((height, width), own):
        refuse_fixed_sizes(graph, (height, width), (own[0], own[1]))
    if own_batch and own_batch != batch:
        rebatch(graph, batch)
    return planar, (height, width)


def _changed(size: Size, own: tuple[int, ...]) -> bool:
    return any(side and side != wanted for side, wanted in zip(own, size, strict=True))


def _planar(graph: ForeignGraph) -> bool:
    """Whether the input is NCHW; NHWC otherwise. Raises ModelError for what is no picture."""
    from onnx import TensorProto

    tensor = graph.input.type.tensor_type
    dims = [dim.dim_value for dim in tensor.shape.dim]
    floats = (TensorProto.FLOAT, TensorProto.FLOAT16)
    if tensor.elem_type not in floats or len(dims) != 4 or not (dims[1] in (0, 3) or dims[3] == 3):
        raise ModelError(
            f"{graph.name}: its input {graph.input.name} is {described(graph.input)}; wanted is a picture: float32 "
            "or float16 [batch, 3, height, width]; export it so"
        )
    return bool(dims[1] == 3 or dims[3] != 3)


def _wanted(graph: ForeignGraph, metadata: Metadata, size: Size | None, own: Size) -> Size:
    """What was asked for, else the file's own size, else what its metadata says."""
    if size is None:
        if all(own):
            return own
        if metadata.imgsz is None:
            raise ModelError(
                f"{graph.name}: its input is {described(graph.input)}, and nothing says which size it was trained at; "
                "give it: --size 640 (or WIDTHxHEIGHT)"
            )
        size = metadata.imgsz
    stride = metadata.stride or STRIDE
    if size != own and any(side % stride for side in size):
        fitting = "x".join(str(-(-side // stride) * stride) for side in reversed(size))
        raise ModelError(f"{graph.name}: --size {size[1]}x{size[0]}: both sides must be multiples of {stride}; "
                         f"the next is --size {fitting}")  # fmt: skip
    if any(side > MAX_SIDE for side in size):
        raise ModelError(f"{graph.name}: its input {size[1]}x{size[0]} is larger than {MAX_SIDE}x{MAX_SIDE}")
    return size
