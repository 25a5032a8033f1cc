"""Find which input of a graph is the picture. Replace inputs that give its size by constants.

Some exporters add an input for the size of the picture, to scale boxes or to know the padding. Our
pictures have the size of the network's input, so ``fix_sizes`` replaces an extra input by a
constant if its name and shape are known (``MEANINGS``). Inputs that no node reads are ignored. All
other inputs are refused.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from detector.core.errors import ModelError
from detector.core.models.formats.onnx.bounds import every_graph, is_function
from detector.core.models.formats.onnx.foreign import ForeignGraph, describe_tensor

if TYPE_CHECKING:
    import onnx

HEIGHT, WIDTH, ONE = "height", "width", "1"


class ExtraInput(NamedTuple):
    """``forms``: the possible contents of the last axis; empty for a mask of the picture."""

    maker: str
    forms: tuple[tuple[str, ...], ...]


TORCH_SIZES = ExtraInput("RT-DETR, D-FINE and DEIM", ((WIDTH, HEIGHT),))
KERAS_SIZES = ExtraInput("YOLOv3 of Keras and of the ONNX zoo", ((HEIGHT, WIDTH),))
PADDLE_SIZES = ExtraInput("PaddleDetection", ((HEIGHT, WIDTH),))
SCALES = ExtraInput("PaddleDetection or mmdetection", ((ONE, ONE), (ONE, ONE, ONE, ONE)))
SIZE_AND_SCALE = ExtraInput(
    "Faster R-CNN of Caffe2, Paddle and OpenVINO",
    ((HEIGHT, WIDTH, ONE), (HEIGHT, WIDTH, ONE, ONE, ONE, ONE)),
)
# The input's name, in lower case and without a framework's affixes -> its meaning.
MEANINGS = {
    "orig_target_sizes": TORCH_SIZES,
    "orig_target_size": TORCH_SIZES,
    "orig_sizes": TORCH_SIZES,
    "orig_size": TORCH_SIZES,
    "im_shape": PADDLE_SIZES,
    "im_size": PADDLE_SIZES,
    "image_shape": KERAS_SIZES,
    "img_shape": ExtraInput("mmdetection", ((HEIGHT, WIDTH), (HEIGHT, WIDTH, "3"))),
    "scale_factor": SCALES,
    "im_info": SIZE_AND_SCALE,
    "image_info": SIZE_AND_SCALE,
    "pixel_mask": ExtraInput("DETR of transformers", ()),
}


def meaning_of(name: str) -> ExtraInput | None:
    """Return the meaning of an input such as ``image_shape:0`` or ``serving_default_im_shape``."""
    plain = re.sub(r"(:\d+|_\d+)$", "", name.lower().rpartition("/")[2])
    return MEANINGS.get(plain.removeprefix("serving_default_"))


def split_inputs(
    path: Path, model: onnx.ModelProto, heavy: Collection[str]
) -> tuple[onnx.ValueInfoProto, list[onnx.ValueInfoProto]]:
    """Return the picture's input and the inputs for its size. Other inputs raise ModelError.
    ``heavy``: large constants, now listed as inputs. Old files list all constants as inputs."""
    graph = model.graph
    constants = {*heavy, *(tensor.name for tensor in graph.initializer)}
    inputs = [info for info in graph.input if info.name not in constants]
    if len(inputs) > 1:
        read = _collect_names_read(model)
        inputs = [info for info in inputs if info.name in read]
    sizes = [info for info in inputs if meaning_of(info.name) is not None]
    others = [info for info in inputs if meaning_of(info.name) is None]
    if len(others) != 1:
        listed = ", ".join(f"{info.name} {describe_tensor(info)}" for info in inputs) or "none"
        raise ModelError(
            f"{path}: has {len(inputs)} inputs: {listed}; expected one input for the picture "
            f"and no others except inputs for its size ({', '.join(MEANINGS)}); export the "
            "network with all other inputs made constant"
        )
    for info in sizes:
        _check_form(path, info)
    if not others[0].type.tensor_type.HasField("shape"):
        raise ModelError(
            f"{path}: its input {others[0].name} has no shape, not even a number of dimensions; "
            "export it with a picture as its input: float32 or float16 [batch, 3, height, width]"
        )
    return others[0], sizes


def _collect_names_read(model: onnx.ModelProto) -> set[str]:
    read: set[str] = set()
    for graph in every_graph(model):
        read.update(name for node in graph.node for name in node.input)
        if not is_function(graph):
            read.update(info.name for info in graph.output)
    return read


def _check_form(path: Path, info: onnx.ValueInfoProto) -> None:
    from onnx import TensorProto

    meaning, tensor = meaning_of(info.name), info.type.tensor_type
    assert meaning is not None
    kinds = {
        TensorProto.INT32,
        TensorProto.INT64,
        TensorProto.FLOAT,
        TensorProto.FLOAT16,
        TensorProto.DOUBLE,
    }
    dims = tensor.shape.dim
    if meaning.forms:
        lengths = {len(form) for form in meaning.forms}
        last = dims[-1].dim_value if dims else 0
        fits = len(dims) in (1, 2) and (last in lengths or (not last and len(lengths) == 1))
        expected = " or ".join(f"[batch, {length}]" for length in sorted(lengths))
    else:
        kinds.add(TensorProto.BOOL)
        fits, expected = len(dims) == 3, "[batch, height, width]"
    if not fits or tensor.elem_type not in kinds:
        raise ModelError(
            f"{path}: its input {info.name} is {describe_tensor(info)}; expected {expected} "
            f"numbers, as in {meaning.maker}; export it with this input made constant"
        )


def fix_sizes(graph: ForeignGraph, size: tuple[int, int], batch: int) -> None:
    """Replace the inputs for sizes by constants, in place. ``size``: (height, width)."""
    from onnx import helper, numpy_helper

    height, width = size
    numbers = {HEIGHT: height, WIDTH: width, ONE: 1, "3": 3}
    for info in graph.sizes:
        tensor = info.type.tensor_type
        dims = [dim.dim_value for dim in tensor.shape.dim]
        meaning = meaning_of(info.name)
        assert meaning is not None
        kind = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        if not meaning.forms:
            defaults = (batch, height, width)
            values = np.ones([own or side for own, side in zip(dims, defaults, strict=True)], kind)
        else:
            form = next(form for form in meaning.forms if dims[-1] in (0, len(form)))
            row = np.array([numbers[word] for word in form], kind)
            values = row if len(dims) == 1 else np.tile(row, (dims[0] or batch, 1))
        graph.constants[info.name] = numpy_helper.from_array(values, info.name)
