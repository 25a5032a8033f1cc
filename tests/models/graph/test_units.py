"""Units of nodes that become int8 together, and the share of a network that stays float."""

import numpy as np
import pytest

from detector.core.models.graph.build import GraphBuilder
from detector.core.models.graph.qdq import Wiring, float_share, int8_nodes, int8_units
from tests.run.quantize.graphs import SIDE, branched, chain, conv, network_of


def test_unit_includes_the_nodes_that_only_its_convolution_feeds() -> None:
    found = int8_units(Wiring(chain().graph))
    assert [unit.nodes for unit in found] == [
        ("input.transpose",),
        ("0.conv", "0.act", "1.maxpool"),
        ("2.conv",),
    ]
    assert [unit.layers for unit in found] == [0, 1, 1]
    assert [unit.macs for unit in found] == [0, 9 * SIDE**2, 6 * SIDE**2]


def test_node_that_joins_two_branches_starts_a_unit() -> None:
    names = [unit.nodes for unit in int8_units(Wiring(branched(2).graph))]
    assert names == [
        ("input.transpose",),
        ("0.conv", "0.act"),
        ("1.conv", "1.act"),
        ("2.shortcut",),
        ("3.conv",),
    ]


def test_macs_are_for_one_picture() -> None:
    assert sum(unit.macs for unit in int8_units(Wiring(branched(3).graph))) == branched().macs


@pytest.mark.parametrize(
    ("kept", "stay"),
    [
        (set(), set()),
        # An int8 sum between float convolutions gains nothing.
        ({"0.conv", "0.act", "1.conv", "1.act", "3.conv"}, {"2.shortcut", "input.transpose"}),
        ({"3.conv"}, set()),  # the sum reads int8 tensors
        ({"0.conv", "0.act", "1.conv", "1.act"}, {"input.transpose"}),  # an int8 node reads the sum
        # The transpose is float if either convolution after it is float. Q and DQ are then only
        # before the int8 convolution.
        ({"0.conv", "0.act"}, {"input.transpose"}),
        ({"0.conv", "0.act", "3.conv"}, {"2.shortcut", "input.transpose"}),
    ],
)
def test_nodes_without_macs_follow_their_neighbours(kept: set[str], stay: set[str]) -> None:
    wiring = Wiring(branched().graph)
    assert set(wiring.able) - int8_nodes(wiring, kept) == kept | stay


def test_decoding_after_the_last_convolution_stays_float() -> None:
    builder = GraphBuilder("tiny")
    x = conv(builder, "0.conv", builder.input_u8(1, SIDE, SIDE), np.eye(3))
    x = builder.add("Sigmoid", "1.decode", [x])
    assert Wiring(network_of(builder, [x]).graph).able == ["input.transpose", "0.conv"]


def test_a_scale_by_a_constant_and_unknown_operators_stay_float() -> None:
    builder = GraphBuilder("tiny")
    x = conv(builder, "0.conv", builder.input_u8(1, SIDE, SIDE), np.eye(3))
    x = builder.add("Mul", "1.scale", [x, builder.constant("1.factor", np.array([2], np.float32))])
    x = builder.add("Tanh", "2.act", [x])
    x = conv(builder, "3.conv", x, np.eye(3))
    assert Wiring(network_of(builder, [x]).graph).able == ["input.transpose", "0.conv", "3.conv"]


def test_share_counts_layers_and_macs() -> None:
    graph = branched().graph  # MACs per pixel: 9, 9 and 3
    share = float_share(graph, {"0.conv", "0.act"})
    assert (share.layers, share.all_layers, share.macs) == (1, 3, pytest.approx(9 / 21))
    assert float_share(graph, set()).macs == 0
    assert float_share(graph, {node.name for node in graph.graph.node}).macs == 1
