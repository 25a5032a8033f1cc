"""Summaries of the precisions in which layers were executed."""

import pytest

from detector.core.analysis.summary import effect, executed, text
from detector.core.session.outcome import ExecutedLayer as Layer


def test_shares_of_layers_macs_and_bytes_add_up():
    shares = executed(
        [Layer("a", "int8", 60, 400), Layer("b", "int8", 30, 0), Layer("c", "fp32", 10, 100)]
    )
    assert shares == {
        "int8": {"layers": 2 / 3, "macs": 0.9, "bytes": 0.5},  # 400 x 1 byte against 100 x 4
        "fp32": {"layers": 1 / 3, "macs": 0.1, "bytes": 0.5},
    }


def test_engine_without_layer_information_has_no_shares():
    assert executed([]) is None
    assert text(None) == ""
    assert effect("int8", None) is None


@pytest.mark.parametrize(
    ("layers", "sentence"),
    [
        ([("fp32", 5)], "fp32 100% of MACs"),
        ([("int8", 96), ("fp32", 4)], "int8 96% of MACs, fp32 4%"),
        # less than 100%, but the rest is too small to be named
        ([("int8", 9999), ("fp32", 1)], "int8 99.9% of MACs"),
        # no layer has MACs, so layers are counted
        ([("bf16", 0), ("fp32", 0), ("fp32", 0)], "fp32 67% of layers, bf16 33%"),
    ],
)
def test_sentence_about_executed_precisions(layers, sentence):
    ran = [Layer(str(at), kind, macs, 1) for at, (kind, macs) in enumerate(layers)]
    assert text(executed(ran)) == sentence


@pytest.mark.parametrize(
    ("requested", "executed_as", "sentence"),
    [
        ("fp32", "fp32", None),
        ("bf16", "bf16", None),
        ("bf16", "fp32", "bf16 was requested but had no effect: executed as fp32 100% of MACs"),
        ("int8", "fp32", "int8 was requested but had no effect: executed as fp32 100% of MACs"),
    ],
)
def test_requested_precision_without_effect_is_reported(requested, executed_as, sentence):
    assert effect(requested, executed([Layer("a", executed_as, 1, 1)])) == sentence
