"""Nodes that OpenVINO may compute in another way than ONNX says, without any error.

Seen with OpenVINO 2026.4.1, beside ONNX Runtime 1.31.1 and ONNX's own reference; the scripts
``findings/openvino_*.sh`` show each. A file with such a node runs only if one inference proves that
it makes no difference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from detector.core.models.base import Network

if TYPE_CHECKING:
    import onnx

Test = Callable[[Mapping[str, Any], int], bool]  # of a node's attributes and the opset
# Shares by which boxes and scores of float32 may differ; rounding alone makes 1e-5.
LIMITS = (1e-3, 1e-3)


def _is_another_resize(attributes: Mapping[str, Any], opset: int) -> bool:
    """These attributes are not read."""
    policy = attributes.get("keep_aspect_ratio_policy", b"stretch")
    return bool(
        attributes.get("antialias") or attributes.get("exclude_outside") or policy != b"stretch"
    )


def _counts_windows_in_padding(attributes: Mapping[str, Any], opset: int) -> bool:
    """With ceil_mode a window that begins in the padding counts, and gives the lowest number."""
    return bool(attributes.get("ceil_mode") and any(attributes.get("pads", ())))


def _reduces_all(attributes: Mapping[str, Any], opset: int) -> bool:
    """The attribute axes is read up to opset 12, the input axes from opset 13 instead of 18 on."""
    return "axes" in attributes and opset >= 13


def _takes_the_highest(attributes: Mapping[str, Any], opset: int) -> bool:
    """The highest interpolated value; for the others the highest weighted corner."""
    return attributes.get("mode") == b"max"


def _reduces_none(attributes: Mapping[str, Any], opset: int) -> bool:
    """Returns its input, where ONNX takes the absolute value or the logarithm of each number."""
    return bool(attributes.get("noop_with_empty_axes"))


TESTS: Mapping[str, Test] = {
    "Resize": _is_another_resize,
    "MaxPool": _counts_windows_in_padding,
    "AveragePool": _counts_windows_in_padding,
    "RoiAlign": _takes_the_highest,
    "ReduceL1": _reduces_all,
    "ReduceLogSum": _reduces_all,
    "ReduceLogSumExp": _reduces_all,
    "ReduceL2": _reduces_none,
}
SATURATING = frozenset(("Add", "Sub", "Mul", "Neg", "Abs"))  # of 8 bits: the others wrap around


def find_differing(network: Network) -> str | None:
    """The first such node ("down (Resize)") of a file that others made; reads no other graph."""
    if "recognised" not in network.details:
        return None
    from onnx import helper

    model = network.graph
    opset = next(one.version for one in model.opset_import if one.domain in ("", "ai.onnx"))
    bytes_ = _names_of_bytes(model.graph)
    for node in model.graph.node:
        test = TESTS.get(node.op_type)
        attributes = {one.name: helper.get_attribute_value(one) for one in node.attribute}
        if (test is not None and test(attributes, opset)) or (
            node.op_type in SATURATING and bytes_.intersection(node.input)
        ):
            return f"{node.name} ({node.op_type})"
    return None


def _names_of_bytes(graph: onnx.GraphProto) -> set[str]:
    """Tensors of 8 bits, as far as inputs, constants and conversions say."""
    from onnx import TensorProto

    kinds = (TensorProto.UINT8, TensorProto.INT8)
    found = {one.name for one in graph.input if one.type.tensor_type.elem_type in kinds}
    found |= {one.name for one in graph.initializer if one.data_type in kinds}
    for node in graph.node:
        if node.op_type == "Cast" and any(one.i in kinds for one in node.attribute):
            found.add(node.output[0])
    return found
