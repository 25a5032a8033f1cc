"""Plans as other tools would build them, made by the fake TensorRT."""

import json
from types import SimpleNamespace
from typing import Any

from detector.core.engines.trt.plan_file import make_log
from detector.core.models.base import Network


def plan_of(
    machine: SimpleNamespace,
    model,
    *,
    batches: tuple[int, int] | None = None,
    portable: bool = False,
    verbosity: str | None = None,
) -> bytes:
    """Build a plan of an ONNX model. ``batches``: the range of a dynamic first dimension.
    ``portable``: include a runtime. ``verbosity``: what the plan tells about its layers (None: only
    their names)."""
    trt = machine.trt
    log = make_log(trt)
    builder = trt.Builder(log)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, log)
    assert parser.parse(model.SerializeToString()), [
        parser.get_error(at).desc() for at in range(parser.num_errors)
    ]
    config = builder.create_builder_config()
    config.clear_flag(trt.BuilderFlag.TF32)
    if verbosity is not None:
        config.profiling_verbosity = getattr(trt.ProfilingVerbosity, verbosity)
    if portable:
        config.set_flag(trt.BuilderFlag.VERSION_COMPATIBLE)
    if batches is not None:
        profile = builder.create_optimization_profile()
        input_ = network.get_input(0)
        rest = [int(side) for side in input_.shape][1:]
        profile.set_shape(
            input_.name,
            *(trt.Dims([batch, *rest]) for batch in (batches[0], batches[1], batches[1])),
        )
        config.add_optimization_profile(profile)
    plan = builder.build_serialized_network(network, config)
    assert plan is not None, log.reason()
    return bytes(plan)


def constant_model(answer: Any, side: int, batch: int | str = 1, half: bool = False) -> Any:
    """Return a model with input [B, 3, side, side] that returns ``answer`` [1, ...] per picture."""
    from onnx import numpy_helper, parser

    kind, number = ("float16", 10) if half else ("float", 1)
    shape = ", ".join(map(str, (batch, *answer.shape[1:])))
    model = parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17]> constant
        (float[{batch}, 3, {side}, {side}] images) => ({kind}[{shape}] output0)
        <float[1] nothing = {{0}}, int64[1] last = {{3}}> {{
            [mean] mean = ReduceMean<axes = [1, 2, 3], keepdims = 1>(images)
            [zero] zero = Mul(mean, nothing)
            [flat] flat = Squeeze(zero, last)
            [answer_of] wide = Add(flat, answer)
            [result] output0 = Cast<to = {number}>(wide)
        }}"""
    )
    model.graph.initializer.append(numpy_helper.from_array(answer, "answer"))
    return model


def with_header(plan: bytes, header: dict) -> bytes:
    """Prepend a header in Ultralytics' format: length, JSON, plan."""
    text = json.dumps(header).encode()
    return len(text).to_bytes(4, "little", signed=True) + text + plan


def as_exported(network: Network, half: bool = False) -> Any:
    """Return the graph as other tools export it: its input is float NCHW in 0..1, not u8 NHWC."""
    import onnx
    from onnx import helper

    model = onnx.ModelProto()
    model.CopyFrom(network.graph)
    graph = model.graph
    batch, height, width, _ = network.input_shape
    cast, transpose = graph.node[0], graph.node[1]
    assert (cast.op_type, transpose.op_type) == ("Cast", "Transpose")
    cast.input[0] = "input"
    transpose.CopyFrom(
        helper.make_node("Mul", [cast.output[0], "white"], transpose.output, name="to_255")
    )
    kind = onnx.TensorProto.FLOAT16 if half else onnx.TensorProto.FLOAT
    graph.input[0].CopyFrom(helper.make_tensor_value_info("input", kind, [batch, 3, height, width]))
    graph.initializer.append(helper.make_tensor("white", onnx.TensorProto.FLOAT, [], [255]))
    del graph.value_info[:]  # it has the shapes of the old layout
    return model
