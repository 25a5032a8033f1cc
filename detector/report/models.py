"""The list of models, and everything about one, on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table


def print_models(console: Console, models: Sequence[dict[str, Any]]) -> None:
    """One line a model. Figures in brackets are the makers' own."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("model", "family", "input", "parameters", "GMACs", "GFLOPs", "published", "licence", "needs"):
        right = name in ("parameters", "GMACs", "GFLOPs", "published")
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    for model in models:
        table.add_row(
            model["name"],
            model["family"],
            _size(model["input"]),
            _millions(model["parameters"] or model["parameters_fused"]),
            _billions(model["macs"]),
            _billions(model["flops"]),
            "-" if model["gflops_published"] is None else f"{model['gflops_published']:.2f}",
            model["licence"],
            model["needs"],
        )
    console.print(table)
    console.print(
        "GFLOPs = 2 x GMACs of convolutions and products of matrices; published: its makers' GFLOPs", style="dim"
    )


def print_model(console: Console, model: dict[str, Any]) -> None:
    """Name and value, line by line."""
    names = model["names"]
    lines = {
        "model": model["name"],
        "": model["description"],
        "family": model["family"],
        "input": _size(model["input"]) + (f", {model['geometry']}" if "geometry" in model else ""),
        "parameters": _count(model["parameters"]),
        "parameters, fused": _count(model["parameters_fused"]),
        "MACs": _count(model["macs"]),
        "FLOPs = 2 x MACs": _count(model["flops"]),
        "GFLOPs published": model["gflops_published"],
        "classes": f"{len(names)}: {', '.join(names[:10])}{', ...' if len(names) > 10 else ''}",
        "outputs": ", ".join("x".join(map(str, shape)) for shape in model.get("outputs", [])),
        "licence": model["licence"],
        "needs": model["needs"],
    }
    for name, value in lines.items():
        if value not in (None, ""):
            console.print(f"{name:<18}{value}", highlight=False, markup=False, soft_wrap=True)
    if not model["counted"]:
        console.print("figures as its makers state them: the model file is not here to be counted", style="dim")
    for note in model.get("notes", []):
        console.print(f"note: {note}", highlight=False, markup=False, soft_wrap=True)


def _size(size: Sequence[int] | None) -> str:
    return "-" if size is None else f"{size[1]}x{size[0]}"


def _count(value: int | None) -> str | None:
    return None if value is None else f"{value:,}"


def _millions(value: int | None) -> str:
    return "-" if value is None else f"{value / 1e6:.2f} M"


def _billions(value: int | None) -> str:
    return "-" if value is None else f"{value / 1e9:.3f}"
