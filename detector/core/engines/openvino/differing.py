"""Find nodes that OpenVINO may silently compute differently from ONNX Runtime.

We saw such differences between OpenVINO 2026.4.1 and ONNX Runtime 1.31.1 (``findings/``). A file
with such a node runs only if both libraries give the same boxes and scores in one inference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from detector.core.models.base import Network

if TYPE_CHECKING:
    import onnx

Test = Callable[[Mapping[str, Any], int], bool]  # (attributes of a node, opset) -> may differ
# Largest relative differences of boxes and scores to accept in float32. Rounding causes 1e-5.
LIMITS = (1e-3, 1e-3)


def _has_ignored_attributes(attributes: Mapping[str, Any], opset: int) -> bool:
    policy = attributes.get("keep_aspect_ratio_policy", b"stretch")
    return bool(
        attributes.get("antialias") or attributes.get("exclude_outside") or policy != b"stretch"
    )


def _counts_windows_in_padding(attributes: Mapping[str, Any], opset: int) -> bool:
    """For windows of padding only, OpenVINO returns the lowest float32. ONNX Runtime omits them."""
    return bool(attributes.get("ceil_mode") and any(attributes.get("pads", ())))


def _reduces_all(attributes: Mapping[str, Any], opset: int) -> bool:
    """From opset 13 on, OpenVINO ignores the attribute ``axes``, which ONNX has up to opset 17."""
    return "axes" in attributes and opset >= 13


TESTS: Mapping[str, Test] = {
    "Resize": _has_ignored_attributes,
    "MaxPool": _counts_windows_in_padding,
    "AveragePool": _counts_windows_in_padding,
    # OpenVINO takes the maximum of interpolated values, ONNX Runtime that of weighted corners.
    "RoiAlign": lambda attributes, opset: attributes.get("mode") == b"max",
    "ReduceL1": _reduces_all,
    "ReduceLogSum": _reduces_all,
    "ReduceLogSumExp": _reduces_all,
    # OpenVINO returns the node's input for an L2 norm over no axes.
    "ReduceL2": lambda attributes, opset: bool(attributes.get("noop_with_empty_axes")),
}
# OpenVINO saturates 8-bit results of these operators, but in ONNX Runtime they wrap around.
SATURATING = frozenset(("Add", "Sub", "Mul", "Neg", "Abs"))


def find_differing(network: Network) -> str | None:
    """Return an ONNX file's first node that may differ, such as "down (Resize)", or None."""
    if "recognised" not in network.details:
        return None
    from onnx import helper

    model = network.graph
    opset = next(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
    eight_bit = _find_8_bit_tensors(model.graph)
    for node in model.graph.node:
        test = TESTS.get(node.op_type)
        attributes = {
            attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute
        }
        if (test is not None and test(attributes, opset)) or (
            node.op_type in SATURATING and eight_bit.intersection(node.input)
        ):
            return f"{node.name} ({node.op_type})"
    return None


def _find_8_bit_tensors(graph: onnx.GraphProto) -> set[str]:
    """Return the names of 8-bit tensors among inputs, constants and results of Cast nodes."""
    from onnx import TensorProto

    kinds = (TensorProto.UINT8, TensorProto.INT8)
    names = {info.name for info in graph.input if info.type.tensor_type.elem_type in kinds}
    names |= {tensor.name for tensor in graph.initializer if tensor.data_type in kinds}
    for node in graph.node:
        if node.op_type == "Cast" and any(attribute.i in kinds for attribute in node.attribute):
            names.add(node.output[0])
    return names
