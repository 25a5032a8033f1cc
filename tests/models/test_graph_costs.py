"""The cost of nodes, compared with counts by hand."""

import numpy as np

from detector.core.engines.base import Engine, LayerExecution
from detector.core.models.graph.build import (
    GraphBuilder,
    NodeCost,
    infer_shapes,
    joint_cost,
    node_costs,
)
from detector.core.run.executed import executed_layers
from detector.core.session.outcome import ExecutedLayer
from tests.known_answers import plus_one


def network():
    network = plus_one(batch=2)
    infer_shapes(network.graph)
    return network


def test_every_node_except_conversions_has_its_costs():
    plane = 2 * 3 * 2 * 3  # batch 2, 3 channels of 2x3
    assert node_costs(network().graph) == {
        "input.nchw": NodeCost(0, plane + plane),
        "0.conv": NodeCost(plane * 3, plane + 9 + 3 + plane),  # 1x1, 3 inputs; 9 weights, 3 biases
        "1.conv": NodeCost(6 * 6, plane + 18 + 6),  # one window of 2x3 for each of 2 x 3 planes
    }


class NoLayers(Engine):
    def __init__(self):
        pass  # it compiles nothing


class Fused(NoLayers):
    def execution(self):
        return [
            LayerExecution(
                "0.conv + 1.conv", "Conv", "int8", nodes=("0.conv", "added.quantize", "1.conv")
            ),
            LayerExecution("input.nchw", "Transpose", "fp32"),
            LayerExecution("reorder_7", "Reorder", "fp32"),
        ]


def test_fused_layer_has_the_costs_of_its_nodes():
    assert executed_layers(network(), Fused()) == (
        ExecutedLayer("0.conv + 1.conv", "int8", 108 + 36, 36 + 12 + 36 + 36 + 18 + 6),
        ExecutedLayer("input.nchw", "fp32", 0, 72),
    )
    assert executed_layers(network(), NoLayers()) == ()


def test_fused_nodes_do_not_store_tensors_between_them():
    graph = network().graph
    plane = 2 * 3 * 2 * 3
    assert joint_cost(
        graph, [("input.nchw", "0.conv"), ("0.conv",), ("input.cast",), ("reorder_7",)]
    ) == [
        # input.nchw is written, too, since 1.conv reads it
        NodeCost(plane * 3, plane + 9 + 3 + plane + plane, 9 + 3, (2, 3, 2, 3)),
        NodeCost(plane * 3, plane + 9 + 3 + plane, 9 + 3, (2, 3, 2, 3)),
        NodeCost(0, 0),  # a conversion alone
        NodeCost(0, 0),  # not in the graph
    ]
    [all_of_it] = joint_cost(graph, [("input.nchw", "0.conv", "1.conv")])
    assert all_of_it == NodeCost(108 + 36, plane + 9 + 3 + plane + 18 + 6, 9 + 3 + 18, (2, 3, 2, 3))


def test_slice_costs_only_what_it_reads():
    builder = GraphBuilder("cut")
    x = builder.input_u8(1, 4, 4)
    bounds = [
        builder.constant(f"0.n{at}", np.array([value], np.int64))
        for at, value in enumerate((0, 1, 1))
    ]
    cut = builder.add("Slice", "0.cut", [x, *bounds])  # one of three channels
    model = builder.model([builder.add("Relu", "1.act", [cut])])
    assert node_costs(model)["0.cut"].elements == 16 + 3 + 16
    (cost,) = joint_cost(model, [("0.cut", "1.act")])
    assert cost.elements == 16 + 3 + 16
    (alone,) = joint_cost(model, [("input.transpose", "0.cut")])
    assert alone.elements == 48 + 3 + 16  # the transpose reads all channels
