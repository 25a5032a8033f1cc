"""Operators that choose among what is computed: the best cells of YOLOv10 and YOLO26, the places that RT-DETR looks at.
As in operators.py, one function an ONNX operator; of one with several outputs a list of modules, one an output."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from detector.engines.torch_graph import modules

if TYPE_CHECKING:
    from detector.engines.torch_graph.operators import Made, Node

SAMPLING = {b"bilinear": "bilinear", b"linear": "bilinear", b"nearest": "nearest"}  # opset 16, 20, both


def _split(node: Node) -> Made:
    """Parts of the sizes given; without them, equal ones, of which the last may be smaller."""
    axis, count = node.attributes.get("axis", 0), len(node.outputs)
    ends = list(accumulate(node.numbers(1))) if len(node.inputs) > 1 and node.inputs[1] else []

    def part(at: int) -> Callable[[Tensor], Tensor]:
        def cut(x: Tensor) -> Tensor:
            side = -(-x.shape[axis] // count)
            start, end = (at * side, min((at + 1) * side, x.shape[axis])) if not ends else ([0, *ends][at], ends[at])
            return x.narrow(axis, start, end - start)

        return cut

    return [modules.Called(part(at)) for at in range(count)], node.inputs[:1]


def _top(node: Node) -> Made:
    """Values, and their places; of equal ones the first come first, which torch.topk does not promise. Both modules
    sort: a call of a module gives one tensor here."""
    count, axis, largest = node.constant(1), node.attributes.get("axis", -1), bool(node.attributes.get("largest", 1))
    if count is None:
        raise node.error("how many are wanted must be given")
    wanted = int(count.item())

    def part(at: int) -> Callable[[Tensor], Tensor]:
        return lambda x: torch.sort(x, dim=axis, descending=largest, stable=True)[at].narrow(axis, 0, wanted)

    return [modules.Called(part(at)) for at in range(len(node.outputs))], node.inputs[:1]


def _gather_elements(node: Node) -> Made:
    axis = node.attributes.get("axis", 0)
    return modules.Called(lambda x, at: x.gather(axis, at.long() % x.shape[axis])), node.inputs


def gather_computed(node: Node) -> Made:
    """Gather whose indices are computed, or of several dimensions: these take the axis's place."""
    axis = node.attributes.get("axis", 0)

    def gather(x: Tensor, at: Tensor) -> Tensor:
        place = axis % x.ndim
        chosen = x.index_select(place, at.reshape(-1).long() % x.shape[place])
        return chosen.reshape(*x.shape[:place], *at.shape, *x.shape[place + 1 :])

    return modules.Called(gather), node.inputs


def _gather_nd(node: Node) -> Made:
    node.refuse(batch_dims=(0,))
    return modules.Called(lambda x, at: x[tuple(at.long().unbind(-1))]), node.inputs


def _tile(node: Node) -> Made:
    repeats = node.numbers(1)
    return modules.Called(lambda x: x.repeat(repeats)), node.inputs[:1]


def _expand(node: Node) -> Made:
    """Either side may be the one that is repeated."""
    sides = node.numbers(1)
    return modules.Called(lambda x: x.expand(torch.broadcast_shapes(x.shape, sides))), node.inputs[:1]


def _mod(node: Node) -> Made:
    """The sign is the divisor's, or with fmod the dividend's."""
    function = torch.fmod if node.attributes.get("fmod", 0) else torch.remainder
    return modules.Called(function), node.inputs


def _arg_max(node: Node) -> Made:
    node.refuse(select_last_index=(0,))
    axis, keep = node.attributes.get("axis", 0), bool(node.attributes.get("keepdims", 1))
    return modules.Called(lambda x: x.argmax(axis, keep)), node.inputs


def _grid_sample(node: Node) -> Made:
    node.refuse(mode=tuple(SAMPLING), padding_mode=(b"zeros", b"border", b"reflection"))
    mode = SAMPLING[node.attributes.get("mode", b"linear")]
    padding = node.attributes.get("padding_mode", b"zeros").decode()
    corners = bool(node.attributes.get("align_corners", 0))

    def sample(x: Tensor, grid: Tensor) -> Tensor:
        return torch.nn.functional.grid_sample(x, grid, mode, padding, corners)

    return modules.Called(sample), node.inputs


def of_all_inputs(function: Callable[..., Tensor]) -> Callable[[Node], Made]:
    """An operator without settings that is a function of torch."""
    return lambda node: (modules.Called(function), node.inputs)


SELECTION: dict[str, Callable[[Node], Any]] = {
    "And": of_all_inputs(torch.logical_and),
    "ArgMax": _arg_max,
    "Equal": of_all_inputs(torch.eq),
    "Expand": _expand,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "Greater": of_all_inputs(torch.gt),
    "GreaterOrEqual": of_all_inputs(torch.ge),
    "GridSample": _grid_sample,
    "Less": of_all_inputs(torch.lt),
    "LessOrEqual": of_all_inputs(torch.le),
    "Mod": _mod,
    "Not": of_all_inputs(torch.logical_not),
    "Or": of_all_inputs(torch.logical_or),
    "Split": _split,
    "Tile": _tile,
    "TopK": _top,
    "Where": of_all_inputs(torch.where),
}
