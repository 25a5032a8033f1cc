"""Names of the house for a graph from elsewhere: every node a path of identifiers, its output named like it.

``/model.0/conv/Conv`` becomes ``model.0.conv`` where that module is one node, ``/model.0/act/Mul`` stays
``model.0.act.Mul`` beside ``model.0.act.Sigmoid``. No name may be the beginning of another: in torch each is a module.
"""

from __future__ import annotations

import keyword
import re
from collections import Counter
from typing import TYPE_CHECKING

from detector.models.onnx_file.foreign import ForeignGraph

if TYPE_CHECKING:
    import onnx

# Attributes of torch.nn.Module and torch.fx.GraphModule, which no submodule may be called; a test compares.
TAKEN = frozenset(
    "T_destination add_module add_submodule apply bfloat16 buffers call_super_init children code compile constants cpu "
    "cuda delete_all_unused_submodules delete_submodule double dump_patches eval extra_repr float forward "
    "get_buffer get_extra_state get_parameter get_submodule graph half input ipu load_state_dict meta modules mtia "
    "named_buffers named_children named_modules named_parameters parameters print_readable recompile "
    "register_backward_hook register_buffer register_forward_hook register_forward_pre_hook "
    "register_full_backward_hook register_full_backward_pre_hook register_load_state_dict_post_hook "
    "register_load_state_dict_pre_hook register_module register_parameter register_state_dict_post_hook "
    "register_state_dict_pre_hook requires_grad_ set_extra_state set_submodule shape_env share_memory state_dict "
    "to to_empty to_folder train training type xpu zero_grad".split()
)
OPERANDS = {name: {1: "weight", 2: "bias"} for name in ("Conv", "ConvTranspose", "Gemm")}


def rename_all(graph: ForeignGraph) -> None:
    """In place: nodes, tensors and constants. Outputs keep their order."""
    names = _node_names(graph.nodes)
    tensors = {graph.input.name: graph.input.name}
    for node, name in zip(graph.nodes, names, strict=True):
        for at, output in enumerate(node.output):
            if output:
                tensors[output] = name if at == 0 else f"{name}.{at}"
    for node, name in zip(graph.nodes, names, strict=True):
        for at, given in enumerate(node.input):
            if given and given not in tensors:
                operand = OPERANDS.get(node.op_type, {}).get(at, f"in{at}")
                tensors[given] = f"{name}.{operand}"
    graph.constants = {tensors[old]: _called(tensor, tensors[old]) for old, tensor in graph.constants.items()
                       if old in tensors}  # fmt: skip
    for node, name in zip(graph.nodes, names, strict=True):
        node.name = name
        node.input[:] = [tensors[old] if old else "" for old in node.input]
        node.output[:] = [tensors[old] if old else "" for old in node.output]
    graph.outputs = {tensors[old]: kind for old, kind in graph.outputs.items()}


def _called(tensor: onnx.TensorProto, name: str) -> onnx.TensorProto:
    tensor.name = name
    return tensor


def _node_names(nodes: list[onnx.NodeProto]) -> list[str]:
    paths = [_path(node) for node in nodes]
    # Below how many nodes' modules does each path lie? One alone needs no operator at its end.
    inside = Counter(path[:-1] for path in paths)
    below = Counter(path[:end] for path in paths for end in range(1, len(path)))
    found: list[str] = []
    taken: set[tuple[str, ...]] = set()
    beginnings: set[tuple[str, ...]] = set()
    for path in paths:
        module = path[:-1]
        short = module if len(module) > 1 and inside[module] == 1 and below[module] == 1 else path
        name = _free(short, taken, beginnings)
        taken.add(name)
        beginnings |= {name[:end] for end in range(1, len(name))}
        found.append(".".join(name))
    return found


def _path(node: onnx.NodeProto) -> tuple[str, ...]:
    """The node's name, else its output's, else its operator, as identifiers."""
    text = node.name or next(iter(node.output), "") or node.op_type
    if text.startswith("input.") and "/" not in text and node.name == node.output[0]:
        return tuple(text.split("."))  # our own prefix
    parts = [_identifier(part) for part in re.split(r"[/.:]+", text.split("@")[0]) if part]
    return tuple(parts) or (_identifier(node.op_type),)


def _identifier(text: str) -> str:
    text = re.sub(r"[^A-Za-z0-9_]", "_", text)
    if text.isdecimal():
        return text
    if text[0].isdigit() or text[0] == "_":
        text = f"n{text}"
    return f"{text}_" if keyword.iskeyword(text) or text in TAKEN else text


def _free(path: tuple[str, ...], taken: set[tuple[str, ...]], beginnings: set[tuple[str, ...]]) -> tuple[str, ...]:
    """The path, or one with a number at its end, that is no other's beginning, nor has another for its own."""
    number = 0
    tried = path
    while tried in taken or tried in beginnings or any(tried[:end] in taken for end in range(1, len(tried))):
        number += 1
        # Where a beginning is a node itself, the number must go there, not to the end.
        at = next((end for end in range(1, len(path)) if path[:end] in taken), len(path))
        tried = (*path[: at - 1], f"{path[at - 1]}_{number}", *path[at:])
    return tried
