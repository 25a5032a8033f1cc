"""Tiny networks for the tests of int8, with answers that a test can write down."""

from __future__ import annotations

import numpy as np

from detector.core.models.base import InputRules, Network
from detector.core.models.graph.build import GraphBuilder, count_macs, output_shapes
from detector.core.types import Candidates

SIDE = 4


def _head(outputs: list[np.ndarray], conf: float) -> Candidates:
    """One box a cell of the last output's first channel; the value is the score."""
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
        dense=lambda found: found[0],
        names=("thing",),
        macs=count_macs(graph),
        sha256="0" * 64,
    )


def conv(
    builder: GraphBuilder, name: str, x: str, weights: np.ndarray, bias: list[float] | None = None
) -> str:
    """1x1 with weights [out, in]."""
    inputs = [
        x,
        builder.constant(
            f"{name}.weight", weights.astype(np.float32).reshape(*weights.shape, 1, 1)
        ),
    ]
    if bias is not None:
        inputs.append(builder.constant(f"{name}.bias", np.array(bias, np.float32)))
    return builder.add("Conv", name, inputs, kernel_shape=[1, 1])


def chain(batch: int = 1) -> Network:
    """conv, Relu, pooling that changes nothing, conv.

    y = relu(x - 55), halved for plane 0 and quartered for plane 1.
    """
    builder = GraphBuilder("tiny")
    x = builder.input_u8(batch, SIDE, SIDE)
    x = conv(builder, "0.conv", x, np.eye(3), [-55, -55, -55])
    x = builder.add("Relu", "0.act", [x])
    x = builder.add("MaxPool", "1.maxpool", [x], kernel_shape=[1, 1], strides=[1, 1])
    x = conv(builder, "2.conv", x, np.array([[0.5, 0, 0], [0, 0.25, 0]]), [0, 0])
    return network_of(builder, [x], batch)


def branched(batch: int = 1) -> Network:
    """Two convolutions with a leaky activation each, added; then one that scales to 0..1."""
    builder = GraphBuilder("tiny")
    x = builder.input_u8(batch, SIDE, SIDE)
    left = builder.add("LeakyRelu", "0.act", [conv(builder, "0.conv", x, np.eye(3))], alpha=0.1)
    right = builder.add(
        "LeakyRelu", "1.act", [conv(builder, "1.conv", x, np.eye(3) * -1.0)], alpha=0.1
    )
    added = builder.add("Add", "2.shortcut", [left, right])
    return network_of(builder, [conv(builder, "3.conv", added, np.full((1, 3), 1 / 700))], batch)
