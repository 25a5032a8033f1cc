"""Tiny networks for the tests of int8, with outputs that are easy to compute by hand."""

from dataclasses import replace

import numpy as np

from detector.core.models.base import InputRules, Network
from detector.core.models.graph.build import GraphBuilder, count_macs, output_shapes
from detector.core.models.graph.int8 import WEIGHT_TOP
from detector.core.models.graph.qdq import depthwise_inputs, quantised_graph, tensors_to_measure
from detector.core.models.graph.ranges import measure_ranges
from detector.core.types import Candidates

SIDE = 4


def _head(outputs: list[np.ndarray], conf: float) -> Candidates:
    """Return a box for each score in the last output's first channel that is at least ``conf``."""
    scores = outputs[-1][0, 0]
    y, x = np.nonzero(scores >= conf)
    corners = np.stack([x, y], axis=1).astype(np.float32) * 10
    return Candidates(
        np.hstack([corners, corners + 10]),
        scores[y, x].astype(np.float32),
        np.zeros(len(x), np.int64),
    )


def network_of(builder: GraphBuilder, outputs: list[str], batch: int = 1) -> Network:
    graph = builder.model(outputs)
    return Network(
        name="tiny",
        family="test",
        graph=graph,
        input=InputRules(SIDE, SIDE, "stretch", 1),
        batch=batch,
        output_shapes=output_shapes(graph),
        head=_head,
        dense=lambda outputs: outputs[0],
        names=("thing",),
        macs=count_macs(graph),
        sha256="0" * 64,
    )


def conv(
    builder: GraphBuilder, name: str, x: str, weights: np.ndarray, bias: list[float] | None = None
) -> str:
    """Add a 1x1 convolution with weights [out, in], or [out, 1] if depthwise."""
    inputs = [
        x,
        builder.constant(
            f"{name}.weight", weights.astype(np.float32).reshape(*weights.shape, 1, 1)
        ),
    ]
    if bias is not None:
        inputs.append(builder.constant(f"{name}.bias", np.array(bias, np.float32)))
    group = len(weights) if weights.shape[1] == 1 else 1
    return builder.add("Conv", name, inputs, kernel_shape=[1, 1], group=group)


def chain(batch: int = 1) -> Network:
    """Make a network of four layers: conv, Relu, a pooling without effect, conv.

    It computes relu(x - 55), divided by 2 for plane 0 and by 4 for plane 1.
    """
    builder = GraphBuilder("tiny")
    x = builder.input_u8(batch, SIDE, SIDE)
    x = conv(builder, "0.conv", x, np.eye(3), [-55, -55, -55])
    x = builder.add("Relu", "0.act", [x])
    x = builder.add("MaxPool", "1.maxpool", [x], kernel_shape=[1, 1], strides=[1, 1])
    x = conv(builder, "2.conv", x, np.array([[0.5, 0, 0], [0, 0.25, 0]]), [0, 0])
    return network_of(builder, [x], batch)


def branched(batch: int = 1) -> Network:
    """Make a network: the sum of two convolutions with leaky activations, scaled to 0..1."""
    builder = GraphBuilder("tiny")
    x = builder.input_u8(batch, SIDE, SIDE)
    left = builder.add("LeakyRelu", "0.act", [conv(builder, "0.conv", x, np.eye(3))], alpha=0.1)
    right = builder.add(
        "LeakyRelu", "1.act", [conv(builder, "1.conv", x, np.eye(3) * -1.0)], alpha=0.1
    )
    added = builder.add("Add", "2.shortcut", [left, right])
    return network_of(builder, [conv(builder, "3.conv", added, np.full((1, 3), 1 / 700))], batch)


def depthwise() -> Network:
    """Make a network that scales the planes by 1, 1/30 and 1/1000 (second output). A depthwise
    convolution scales them back and adds 10, 20 and 30 (first output)."""
    builder = GraphBuilder("tiny")
    shares = np.array([1, 1 / 30, 1 / 1000])
    small = conv(builder, "0.conv", builder.input_u8(1, SIDE, SIDE), np.diag(shares))
    large = conv(builder, "1.conv", small, 1 / shares[:, None], [10, 20, 30])
    return network_of(builder, [large, conv(builder, "2.conv", small, np.eye(3))])


def in_int8(network: Network, kind: str, pictures: np.ndarray, top: int = WEIGHT_TOP) -> Network:
    """Quantise every layer with the ranges of these pictures."""
    graph = network.graph
    by_channel = depthwise_inputs(graph)
    ranges = measure_ranges(
        graph, tensors_to_measure(graph), pictures, "minmax", by_channel=by_channel
    )
    return replace(network, graph=quantised_graph(graph, ranges, (), kind, top), precision=kind)
