"""The module in bfloat16 or float16, cast part by part; the fp32 graph stays what it is.

What stays float32: the tail, that is what no convolution or product of matrices comes after. Decoding boxes up to 640
pixels in half precision would round them to half a pixel (float16) or to four (bfloat16), and costs nothing in
float32. Where a tensor leaves the halves it is cast; the outputs are float32 always.
"""

from __future__ import annotations

import torch
from torch import fx, nn

from detector.engines.torch_graph import attach
from detector.engines.torch_graph.modules import ToType

MULTIPLYING = ("Conv", "ConvTranspose", "Gemm", "MatMul")


def halved(module: fx.GraphModule, dtype: torch.dtype) -> fx.GraphModule:
    """Changes the module in place. ``dtype``: bfloat16 or float16."""
    graph, body = module.graph, _body(module)
    for node in body:
        _cast(module.get_submodule(str(node.target)), dtype)
    for node in list(graph.nodes):
        if node.op == "get_attr":
            _constant_for(module, node, body, dtype)
    for node in body:
        outside = [user for user in node.users if user not in body]
        if not outside:
            continue
        with graph.inserting_after(node):
            back = graph.call_method("to", (node, torch.float32))
        for user in outside:
            user.replace_input_with(node, back)
    module.recompile()
    return module


def _body(module: fx.GraphModule) -> dict[fx.Node, None]:
    """The nodes that a multiplying one comes after, and these themselves, in order."""
    operators = module.meta["operators"]
    body: dict[fx.Node, None] = {}
    for node in reversed(module.graph.nodes):
        if node.op != "call_module":
            continue
        if operators.get(node.target) in MULTIPLYING or any(user in body for user in node.users):
            body[node] = None
    return dict(reversed(body.items()))


def _cast(part: nn.Module, dtype: torch.dtype) -> None:
    part.to(dtype)  # parameters and buffers of float types only
    if isinstance(part, ToType) and part.dtype.is_floating_point:
        part.dtype = dtype


def _constant_for(module: fx.GraphModule, node: fx.Node, body: dict[fx.Node, None], dtype: torch.dtype) -> None:
    """A constant that the body reads gets a second form; a tail that reads it too keeps the first."""
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
