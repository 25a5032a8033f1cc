"""The kinds of int8 graphs (qdq.py writes them), and how many bits their weights have here."""

from __future__ import annotations

from detector.core.errors.machine import adds_int8_in_16_bits

FRONT = "int8-u8-front"
KINDS = ("int8-u8", "int8-s8", FRONT)
WEIGHT_TOP = 127  # TensorRT takes weights of -127..127
NARROW_TOP = 64  # two products with u8 stay within 16 bits: 2 * 255 * 64 < 2**15


def weight_top(kind: str) -> int:
    """Return the largest weight of a kind of int8, in steps, on this CPU. Overflow costs more than
    a bit: agreement with fp32 is 0.92 with 8 bits, 0.97 with 7 on AVX2, 0.98 with 8 if 32 bits are
    added (``training/evaluate_default --agreement``)."""
    return NARROW_TOP if kind != "int8-s8" and adds_int8_in_16_bits() else WEIGHT_TOP
