"""Cast a module to bfloat16 or float16, part by part. The fp32 graph stays unchanged.

Layers that the caller names and the tail, which is everything after the last product, stay float32:
decoding boxes in halves would round them to half a pixel or more.
"""

from __future__ import annotations

from collections.abc import Collection, Set

import torch
from torch import Tensor, fx, nn

from detector.core.engines.torch.graph import attach
from detector.core.engines.torch.modules import ToType
from detector.core.models.graph.operators import MULTIPLYING


def halved(
    module: fx.GraphModule, dtype: torch.dtype, kept: Set[str] = frozenset()
) -> fx.GraphModule:
    """Cast the module in place to ``dtype``. ``kept``: names of layers that stay float32."""
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
    """Return the multiplying nodes and all nodes before them, without those in ``kept``."""
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
    """Copy a constant that the body reads to ``dtype``; other readers keep the first."""
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
