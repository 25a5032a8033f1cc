"""Cast the layers of a module to bfloat16 or float16. The ONNX graph itself stays fp32.

Layers that the caller names stay float32, and so do all layers after the last convolution or matrix
product, since decoding boxes in 16 bits would round them by half a pixel or more.
"""

from __future__ import annotations

from collections.abc import Collection, Set

import torch
from torch import Tensor, fx, nn

from detector.core.engines.torch.graph import attach
from detector.core.engines.torch.modules import ToType
from detector.core.models.graph.operators import MULTIPLYING


def cast_to_halves(
    module: fx.GraphModule, dtype: torch.dtype, kept: Set[str] = frozenset()
) -> fx.GraphModule:
    """Cast the module in place to ``dtype``. ``kept``: names of layers that stay float32."""
    body = _find_body(module, kept)
    for node in body:
        _cast(module.get_submodule(str(node.target)), dtype)
    for node in list(module.graph.nodes):
        if node.op == "get_attr":
            _copy_constant(module, node, body, dtype)
        elif node in body:
            _insert_cast(
                module.graph, node, [user for user in node.users if user not in body], torch.float32
            )
        elif node.op == "call_module":
            _insert_cast(module.graph, node, [user for user in node.users if user in body], dtype)
    module.recompile()
    return module


def _find_body(module: fx.GraphModule, kept: Set[str]) -> set[fx.Node]:
    """Return convolutions, matrix products and all nodes before them, except the ``kept`` ones."""
    operators = module.meta["operators"]
    body: set[fx.Node] = set()
    for node in reversed(module.graph.nodes):
        if node.op != "call_module":
            continue
        if operators.get(node.target) in MULTIPLYING or any(user in body for user in node.users):
            body.add(node)
    return {node for node in body if node.target not in kept}


def _cast(part: nn.Module, dtype: torch.dtype) -> None:
    part.to(dtype)  # casts float parameters and buffers only
    if isinstance(part, ToType) and part.dtype.is_floating_point:
        part.dtype = dtype


def _insert_cast(
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


def _copy_constant(
    module: fx.GraphModule, node: fx.Node, body: Set[fx.Node], dtype: torch.dtype
) -> None:
    readers = [user for user in node.users if user in body]
    value = module.get_buffer(str(node.target))
    if not readers or not value.is_floating_point():
        return
    path = f"{node.target}_{str(dtype).removeprefix('torch.')}"
    attach(module, path, value.to(dtype))
    with module.graph.inserting_after(node):
        copy = module.graph.get_attr(path)
    for user in readers:
        user.replace_input_with(node, copy)
