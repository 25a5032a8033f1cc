"""Did it take effect? The precision that was really executed, as shares of layers, MACs and bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from detector.session.outcome import ExecutedLayer

Shares = dict[str, dict[str, float]]
"""Type -> share of layers, macs and bytes in it; the largest share of MACs first. Each adds up to 1."""

BYTES = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "int8": 1, "s8": 1, "u8": 1}
OTHER_BYTES = 4  # of a type that is not in the table: int32, mostly
FLOAT = ("fp32",)
SHOWN = 0.005  # below half a percent a type is not named in the sentence


def executed(layers: Sequence[ExecutedLayer]) -> Shares | None:
    """None where the engine told nothing. Bytes: numbers read and written, times the size of the executed type."""
    if not layers:
        return None
    sums: dict[str, list[int]] = {}
    for layer in layers:
        own = sums.setdefault(layer.precision, [0, 0, 0])
        own[0] += 1
        own[1] += layer.macs
        own[2] += layer.elements * BYTES.get(layer.precision, OTHER_BYTES)
    totals = [sum(own[at] for own in sums.values()) for at in range(3)]
    ranked = sorted(sums, key=lambda name: (-sums[name][1], -sums[name][2], name))
    return {
        name: {
            what: own / total if total else 0.0
            for what, own, total in zip(("layers", "macs", "bytes"), sums[name], totals, strict=True)
        }
        for name in ranked
    }


def text(shares: Mapping[str, Mapping[str, float]] | None) -> str:
    """``int8 96% of MACs, fp32 4%``; by layers where nothing has MACs; empty where nothing is known."""
    if not shares:
        return ""
    what, unit = ("macs", "MACs") if any(share["macs"] for share in shares.values()) else ("layers", "layers")
    ranked = sorted(shares.items(), key=lambda item: -item[1][what])
    shown = [(name, share[what]) for name, share in ranked if share[what] >= SHOWN]
    parts = [f"{name} {_percent(share)}" for name, share in shown]
    return ", ".join([f"{parts[0]} of {unit}", *parts[1:]])


def effect(asked: str, shares: Mapping[str, Mapping[str, float]] | None) -> str | None:
    """A sentence where the asked precision changed nothing; None where it did, or where nobody can tell."""
    if not shares or asked in (*FLOAT, "none") or shares.get(asked, {}).get("layers", 0) > 0:
        return None
    return f"{asked} was asked for and changed nothing: executed {text(shares)}"


def _percent(share: float) -> str:
    """Never 100% of what is not all."""
    return f"{min(share, 0.999):.1%}" if 0.995 <= share < 1 else f"{share:.0%}"
