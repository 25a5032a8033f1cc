"""The kinds of int8 graphs (qdq.py writes them), and the range of their weights."""

from __future__ import annotations

from detector.core.errors.machine import adds_int8_in_16_bits

FRONT = "int8-u8-front"
KINDS = ("int8-u8", "int8-s8", FRONT)
WEIGHT_TOP = 127  # TensorRT requires weights of -127..127
NARROW_TOP = 64  # the sum of two products with u8 fits in 16 bits: 2 * 255 * 64 < 2**15


def weight_top(kind: str) -> int:
    """Return the largest int8 weight that this CPU can use. AVX2 adds products in 16 bits, which
    8-bit weights overflow: agreement with fp32 is 0.92 with 8-bit and 0.97 with 7-bit weights. CPUs
    that add in 32 bits reach 0.98 with 8 bits (``training/evaluate_default --agreement``)."""
    return NARROW_TOP if kind != "int8-s8" and adds_int8_in_16_bits() else WEIGHT_TOP
