"""Print the tables of ``models`` and the results and progress of ``build``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from detector.core.tables import Column, Table
from detector.core.terminal.console import SafeConsole
from detector.core.terminal.tables import draw_table

MODELS = (
    Column("name", "model"),
    Column("family", out=6),
    Column("input", value=lambda one: _format_size(one["input"]), out=7),
    Column(
        "parameters",
        form=".2f",
        unit="M",
        value=lambda one: _divide(one["parameters"] or one["parameters_fused"], 1e6),
        out=5,
    ),
    Column("size_mb", "as fp32", ".1f", "MB", value=lambda one: _fp32_size(one, 1e6), out=9),
    Column("size_mib", "as fp32", ".1f", "MiB", value=lambda one: _fp32_size(one, 2**20), out=8),
    Column("macs", "GMACs", ".3f", value=lambda one: _divide(one["macs"], 1e9), out=3),
    Column("flops", "GFLOPs", ".3f", value=lambda one: _divide(one["flops"], 1e9), out=4),
    Column("gflops_published", "published", ".2f", out=2),
    Column("licence", out=1),
    Column("needs"),
)
FAMILIES = (
    Column("name", "family"),
    Column("about", "what", out=1),
    Column("licence", out=2),
    Column("source", "where to get it", out=3),
)


def _fp32_size(model: dict[str, Any], unit: float) -> float | None:
    return _divide(4 * (model["parameters"] or model["parameters_fused"] or 0) or None, unit)


def print_models(console: SafeConsole, models: Sequence[dict[str, Any]]) -> None:
    console.print(draw_table(console, Table("models", MODELS, models), one_line=True))
    console.print(
        "GFLOPs = 2 x GMACs of convolutions and matrix products; published: the GFLOPs that the "
        "model's authors state",
        style="dim",
    )
    console.print(
        "Your own files: --model FILE. To list the supported families of .onnx files, run: "
        "detect-video models families",
        style="dim",
        highlight=False,
    )


def print_families(console: SafeConsole, families: Sequence[dict[str, Any]]) -> None:
    console.print(draw_table(console, Table("families", FAMILIES, families)))
    console.print(
        "If an .onnx file is not recognised, name its family with --family NAME",
        style="dim",
        highlight=False,
    )


def print_model(console: SafeConsole, model: dict[str, Any]) -> None:
    names = model["names"]
    most = "at most " if model["macs_at_most"] else ""
    lines = {
        "model": model["name"],
        "": model["description"],
        "family": model["family"],
        "input": _format_size(model["input"])
        + (f", {model['geometry']}" if "geometry" in model else ""),
        "parameters": _format_count(model["parameters"]),
        "parameters, fused": _format_count(model["parameters_fused"]),
        "MACs": _format_count(model["macs"], most),
        "FLOPs = 2 x MACs": _format_count(model["flops"], most),
        "GFLOPs published": model["gflops_published"],
        "classes": f"{len(names)}: {', '.join(names[:10])}{', ...' if len(names) > 10 else ''}",
        "outputs": ", ".join("x".join(map(str, shape)) for shape in model.get("outputs", [])),
        "licence": model["licence"],
        "needs": model["needs"],
    }
    for name, value in lines.items():
        if value not in (None, ""):
            console.print(f"{name:<18}{value}", highlight=False, soft_wrap=True)
    if not model["counted"]:
        console.print(
            "The model file is not here, so these are its authors' figures; nothing was counted.",
            style="dim",
        )
    for note in model.get("notes", []):
        console.print(f"note: {note}", highlight=False, soft_wrap=True)


def _format_size(size: Sequence[int] | None) -> str:
    return "-" if size is None else f"{size[1]}x{size[0]}"


def _format_count(value: int | None, most: str = "") -> str | None:
    return None if value is None else f"{most}{value:,}"


def _divide(value: int | None, unit: float) -> float | None:
    return None if value is None else value / unit


@contextmanager
def progress_bar(
    console: SafeConsole, shown: bool, *, one_line: bool = False
) -> Iterator[Callable[[str, int, int], bool]]:
    """If ``shown``, show a progress bar for each task, or a single bar with ``one_line``."""
    if not shown:
        yield lambda task, done, total: True
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
    )
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as bar:
        tasks: dict[str, Any] = {"": bar.add_task("starting", total=None)} if one_line else {}

        def step(task: str, done: int, total: int) -> bool:
            line = "" if one_line else task
            if line not in tasks:
                tasks[line] = bar.add_task(task, total=total)
            bar.update(tasks[line], description=task, completed=done, total=total)
            return True

        yield step


def describe_build(facts: dict[str, Any]) -> list[str]:
    batch, height, width, _ = facts["input_shape"]
    size = f"{width}x{height} batch {facts['batch'] if '..' in facts['batch'] else batch}"
    what = f"{facts['model']} for engine {facts['engine']}, {facts['precision']}, {size}"
    if facts["built"]:
        head = f"built: {facts['path']} in {facts['seconds']:.1f} s"
    else:
        took = f" (the build took {facts['build_s']:.1f} s)" if facts.get("build_s") else ""
        head = f"already built: {facts['path']}{took}"
    extra = [f"{name}: {value}" for name, value in (facts.get("facts") or {}).items()]
    origin = f"from: {facts['model_sha256'][:12] or 'no weights'} (sha256 of the model's files)"
    return [head, f"what: {what}", origin, *extra, *(f"note: {note}" for note in facts["notes"])]


def build_line(console: SafeConsole) -> Callable[[str, int, int], bool]:
    """Return a callback that prints a build's progress where the live line will be printed."""

    def step(task: str, done: int, total: int) -> bool:
        text = "" if done >= total else f"building: {task} {done}/{total}"
        console.print(text[: console.width - 1].ljust(console.width - 1), end="\r", highlight=False)
        return True

    return step
