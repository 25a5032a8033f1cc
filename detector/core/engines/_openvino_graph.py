"""Present an OpenVINO IR as a ``ForeignGraph``, so that the code for ONNX files recognises it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detector.core.models.formats.onnx.evidence import Evidence, PixelSteps
from detector.core.models.formats.onnx.foreign import ForeignGraph
from detector.core.models.layouts.output_shapes import Dims
from detector.core.models.probed import is_dark, measure_spread

# OpenVINO's layer -> ONNX's operator, if the names differ.
OPERATORS = {
    "Convert": "Cast",
    "Convolution": "Conv",
    "ConvolutionBackpropData": "ConvTranspose",
    "Divide": "Div",
    "FakeQuantize": "QuantizeLinear",
    "GroupConvolution": "Conv",
    "Interpolate": "Resize",
    "Multiply": "Mul",
    "ScatterNDUpdate": "ScatterND",
    "SoftMax": "Softmax",
    "StridedSlice": "Slice",
    "Subtract": "Sub",
    "VariadicSplit": "Split",
}
KINDS = dict(f32="FLOAT", f16="FLOAT16", f64="DOUBLE", u8="UINT8", i32="INT32", i64="INT64")
BOOLEANS = {"YES": True, "TRUE": True, "NO": False, "FALSE": False}
RESIZE_TYPES = {
    "standard": {"fit": "stretch"},
    "fit_to_window": {"fit": "letterbox", "align": "top-left"},
    "fit_to_window_letterbox": {"fit": "letterbox", "align": "centre"},
}
SLICE_INPUTS = (0, 1, 2, 4, 3)  # ONNX has the axes before the steps
PREPROCESSING = "preprocessing_0"  # rt_info key of layers that PrePostProcessor added or changed
REVERSED = "Gather_"  # prefix of weights that PrePostProcessor.reverse_channels() changed


@dataclass(slots=True)
class IrGraph(ForeignGraph):
    layers: dict[str, Any] = field(default_factory=dict)

    def value(self, name: str) -> NDArray[Any] | None:
        layer = self.layers.get(name)
        return None if layer is None else np.asarray(layer.get_data())


@dataclass(slots=True)
class IrEvidence(Evidence):
    """Evidence from an IR. ``model``: OpenVINO's model, at the requested size and batch."""

    suffix: str = ".xml"
    model: Any = None
    _pixel_steps: PixelSteps | None = None

    def pixel_steps(self) -> PixelSteps:
        """Return the pre-processing, including any that PrePostProcessor folded into the weights of
        the first layer. PrePostProcessor marks such weights."""
        if self._pixel_steps is None:
            self._pixel_steps = self._find_folded()
        return self._pixel_steps

    def _find_folded(self) -> PixelSteps:
        steps = Evidence.pixel_steps(self)
        first = self.first_convolutions()[:1]
        layers = [
            layer
            for layer in self.model.get_ordered_ops()
            if first and layer.get_friendly_name() == first[0].name
        ]
        weights = _constant(layers[0].input_value(1)) if layers else None
        if weights is None:
            return steps
        factor = 1.0
        if PREPROCESSING in weights.get_rt_info() and not steps.scales:
            results = self._run([first[0].output[0]], self._draw_picture(bright=False))
            dark = results is not None and is_dark(measure_spread(results[first[0].output[0]][0]))
            factor = 1 / 255 if dark else 1.0
        swapped = weights.get_friendly_name().startswith(REVERSED)
        return PixelSteps(
            steps.factor * factor, steps.offset * factor, steps.swaps_channels != swapped
        )

    def _run(self, names: list[str], picture: NDArray[Any]) -> dict[str, NDArray[Any]] | None:
        import openvino

        ports = {key: port for port, key in _names(self.model).items()}
        ends = [result.input_value(0) for result in self.model.get_results()]
        ports |= dict(zip(output_names(self.model), ends, strict=True))
        try:
            model = openvino.Model(
                [ports[name] for name in names], self.model.get_parameters(), "probe"
            )
            settings = {"INFERENCE_PRECISION_HINT": "f32", "ENABLE_CPU_PINNING": False}
            results = openvino.Core().compile_model(model, "CPU", settings)(picture)
        except Exception:  # RuntimeError and others
            return None
        return {name: np.array(results[at]) for at, name in enumerate(names)}


def graph_of(model: Any, name: str) -> IrGraph:
    from onnx import TensorProto, helper

    names, picture = _names(model), model.inputs[0]
    info = helper.make_tensor_value_info(names[picture], _kind(picture), dims_of(picture))
    graph = IrGraph(name, 17, 8, info, (), {}, [], {})
    for port, key in names.items():
        graph.dims[key], graph.types[key] = dims_of(port), _kind(port)
    for layer in model.get_ordered_ops():
        operator = layer.get_type_name()
        outputs = [names[port] for port in layer.outputs()]
        if operator in ("Parameter", "Result"):
            continue
        constant = _constant(layer.output(0)) if len(outputs) == 1 else None
        if constant is not None:
            graph.layers[outputs[0]] = constant
            graph.constants[outputs[0]] = TensorProto(
                name=outputs[0], data_type=graph.types[outputs[0]], dims=layer.output(0).get_shape()
            )
            continue
        inputs = [names[port] for port in layer.input_values()]
        attributes: dict[str, Any] = {}
        if operator == "Concat":
            attributes["axis"] = int(layer.get_attributes()["axis"])
        elif operator == "Gather" and (axis := _constant(layer.input_value(2))) is not None:
            attributes["axis"] = int(np.ravel(axis.get_data())[0])
        elif operator == "Slice" and len(inputs) == len(SLICE_INPUTS):
            inputs = [inputs[at] for at in SLICE_INPUTS]
        elif operator == "Add" and (convolution := _find_convolution(layer)) is not None:
            operator, inputs = "Identity", [names[convolution]]
        operator = OPERATORS.get(operator, operator)
        graph.nodes.append(
            helper.make_node(
                operator, inputs, outputs, name=layer.get_friendly_name(), **attributes
            )
        )
    for key, result in zip(output_names(model), model.get_results(), strict=True):
        source = names[result.input_value(0)]
        graph.nodes.append(helper.make_node("Identity", [source], [key], name=key))
        graph.outputs[key] = graph.types[key] = graph.types[source]
        graph.dims[key] = graph.dims[source]
    return graph


def output_names(model: Any) -> list[str]:
    return [min(port.get_names(), default=f"output{at}") for at, port in enumerate(model.outputs)]


def dims_of(port: Any) -> Dims:
    """Return a tensor's dimensions (None: dynamic), or () if even their number is dynamic."""
    shape = port.get_partial_shape()
    if shape.rank.is_dynamic:
        return ()
    return tuple(None if side.is_dynamic else int(side.get_length()) for side in shape)


def _names(model: Any) -> dict[Any, str]:
    """Name each tensor of a model after its position. Only the input keeps its own name."""
    names = {}
    for at, layer in enumerate(model.get_ordered_ops()):
        for port in layer.outputs():
            names[port] = f"{at}:{port.get_index()}"
    names[model.inputs[0]] = min(model.inputs[0].get_names(), default="input")
    return names


def _kind(port: Any) -> int:
    from onnx import TensorProto

    return int(
        getattr(TensorProto, KINDS.get(port.get_element_type().get_type_name(), "UNDEFINED"))
    )


def _constant(port: Any) -> Any:
    layer = None if port is None else port.get_node()
    while layer is not None and layer.get_type_name() == "Convert":
        layer = layer.input_value(0).get_node()
    known = layer is not None and layer.get_type_name() == "Constant" and _kind(layer.output(0))
    return layer if known else None


def _find_convolution(layer: Any) -> Any:
    """Return the output of the convolution whose bias ``layer`` (an Add) adds, or None."""
    for data, bias in ((0, 1), (1, 0)):
        output = layer.input_value(data)
        is_convolution = OPERATORS.get(output.get_node().get_type_name()) == "Conv"
        if is_convolution and _constant(layer.input_value(bias)) is not None:
            return output
    return None


def read_stated_input(info: Mapping[str, str]) -> dict[str, Any]:
    """Return what ``model_info`` (of Intel's Model API) states about the picture, with the keys of
    ``InputDescription``. The API reads pictures as BGR, so reversed channels mean RGB."""
    facts: dict[str, Any] = {}
    if (reverse := info.get("reverse_input_channels", "").upper()) in BOOLEANS:
        facts["colour"] = "rgb" if BOOLEANS[reverse] else "bgr"
    mean, deviation = _numbers(info.get("mean_values")), _numbers(info.get("scale_values"))
    deviation = deviation if deviation and all(deviation) else None  # we divide by each value
    if mean or deviation:
        facts |= {"scale": 1.0, "mean": mean, "deviation": deviation}
    if (fit := RESIZE_TYPES.get(info.get("resize_type", ""))) is not None:
        facts |= fit
    if (pad := info.get("pad_value", "")).isdecimal() and int(pad) <= 255:
        facts["pad"] = int(pad)
    return facts


def _numbers(text: str | None) -> tuple[float, ...] | None:
    """Parse one or three numbers from 0 to 1e6, and return three. Return None for other text."""
    try:
        numbers = tuple(float(word) for word in (text or "").split())
    except ValueError:
        return None
    numbers = numbers * 3 if len(numbers) == 1 else numbers
    return numbers if len(numbers) == 3 and all(0 <= n < 1e6 for n in numbers) else None
