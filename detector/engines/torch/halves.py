"""The module in bfloat16 or float16, cast part by part; the fp32 graph stays what it is.

What stays float32: the layers that the caller names, and the tail, that is what no convolution or product of matrices
comes after. Decoding boxes up to 640 pixels in half precision would round them to half a pixel (float16) or to four
(bfloat16), and costs nothing in float32. Where a tensor goes from one type to the other it is cast; the outputs are
float32 always.
"""

from __future__ import annotations

from collections.abc import Collection, Set

import torch
from torch import Tensor, fx, nn

from detector.engines.torch.graph import attach
from detector.engines.torch.modules import ToType
from detector.models.graph.build import MULTIPLYING


def halved(
    module: fx.GraphModule, dtype: torch.dtype, kept: Set[str] = frozenset()
) -> fx.GraphModule:
    """Changes the module in place. ``dtype``: bfloat16 or float16. ``kept``: names of layers that stay float32."""
    body = _body(module, kept)
    for node in body:
        _cast(module.get_submodule(str(node.target)), dtype)
    for node in list(module.graph.nodes):
        if node.op == "get_attr":
            _constant_for(module, node, body, dtype)
        elif node in body:
            _cast_for(
                module.graph, node, [user for user in node.users if user not in body], torch.float32
            )
        elif node.op == "call_module":
            _cast_for(module.graph, node, [user for user in node.users if user in body], dtype)
    module.recompile()
    return module


def _body(module: fx.GraphModule, kept: Set[str]) -> set[fx.Node]:
    """The nodes that a multiplying one comes after, and these themselves, without what is kept."""
    operators = module.meta["operators"]
    leads: set[fx.Node] = set()
    for node in reversed(module.graph.nodes):
        if node.op != "call_module":
            continue
        if operators.get(node.target) in MULTIPLYING or any(user in leads for user in node.users):
            leads.add(node)
    return {node for node in leads if node.target not in kept}


def _cast(part: nn.Module, dtype: torch.dtype) -> None:
    part.to(dtype)  # parameters and buffers of float types only
    if isinstance(part, ToType) and part.dtype.is_floating_point:
        part.dtype = dtype


def _cast_for(
    graph: fx.Graph, node: fx.Node, readers: Collection[fx.Node], dtype: torch.dtype
) -> None:
    if not readers:
        return
    with graph.inserting_after(node):
        cast = graph.call_function(_floats_to, (node, dtype))
    for reader in readers:
        reader.replace_input_with(node, cast)


def _floats_to(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.to(dtype) if x.is_floating_point() else x


def _constant_for(
    module: fx.GraphModule, node: fx.Node, body: Set[fx.Node], dtype: torch.dtype
) -> None:
    """A constant that the body reads gets a second form; what else reads it keeps the first."""
    inside = [user for user in node.users if user in body]
    value = module.get_buffer(str(node.target))
    if not inside or not value.is_floating_point():
        return
    place = f"{node.target}_{str(dtype).removeprefix('torch.')}"
    attach(module, place, value.to(dtype))
    with module.graph.inserting_after(node):
        other = module.graph.get_attr(place)
    for user in inside:
        user.replace_input_with(node, other)
    if not node.users:
        module.graph.erase_node(node)
