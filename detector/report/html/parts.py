"""Sections of the HTML report that show what a pass found: nothing where it did not run."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from detector.analysis.layers import above_roof, in_no_layer
from detector.report.html import drawings
from detector.report.html.drawings import (
    MOST_POINTS,
    Share,
    figure,
    filter_of,
    folded,
    key_of,
    legend,
    section,
    table,
    zoom_buttons,
)
from detector.session.read import SavedSession

LEAST = 0.005  # of Python's time, below which a room or library is not listed
TAGS = ("package", "core", "dram", "gpu")


def found_by(session: SavedSession, name: str) -> dict[str, Any] | None:
    """A pass's facts; None where it did not run, or could not."""
    facts = session.passes.get(name, {})
    return facts if facts.get("available") else None


def text(*sentences: str | None) -> str:
    return f"<p>{escape(' '.join(one for one in sentences if one))}</p>"


def sentence(line: str | None) -> str | None:
    return f"{line[0].upper()}{line[1:]}." if line else None


def layers(session: SavedSession) -> str:
    facts = found_by(session, "layers")
    if facts is None:
        return ""
    columns = (
        "layer",
        "type",
        "ms",
        "share",
        "MMACs",
        "MFLOPs",
        "KB",
        "GFLOP/s",
        "GB/s",
        "FLOP/byte",
        "precision",
        "of its roof",
        "bound",
        "note",
    )
    rows = [
        [
            row["name"],
            row["type"],
            row["ms"],
            Share(row["share"]),
            row["macs"] / 1e6,
            row["flops"] / 1e6,
            row["bytes"] / 1e3,
            row.get("gflops_s"),
            row.get("gbytes_s"),
            row.get("intensity"),
            row["precision"],
            Share(row.get("utilisation")),
            row.get("bound") or "",
            row.get("flag") or "",
        ]
        for row in facts["rows"]
    ]
    note = f"{len(rows)} layers, {facts['sum_ms']:.3f} ms together; a forward pass took {facts['forward_ms']:.3f} ms."
    types = [
        [row["type"], row["layers"], row["ms"], Share(row["share"])]
        for row in facts.get("by_type", [])
    ]
    body = table("types", ("type", "layers", "ms", "share"), types) if types else ""
    body = filter_of("layers", "layers") + table("layers", columns, rows) + body
    said = text(
        note,
        sentence(in_no_layer(facts)),
        *(sentence(one) for one in (facts.get("flag"), *facts.get("notes", []))),
    )
    return section("layers", "Layers", said, body, how="layers")


def roofline(session: SavedSession) -> str:
    facts, measured = found_by(session, "roofline"), found_by(session, "layers")
    if facts is None or measured is None:
        return ""
    dots = [
        (row["name"], row.get("intensity") or 0.0, row.get("gflops_s") or 0.0)
        for row in measured["rows"]
    ]
    used = {row["precision"] for row in measured["rows"] if row["flops"]}
    roofs = {name: peak for name, peak in facts["peaks"]["gflops_s"].items() if name in used}
    drawn = drawings.roofline(dots, roofs, facts["peaks"]["bandwidth_gbytes_s"]) if roofs else ""
    note = (
        f"{facts['macs'] / 1e9:.3f} GMACs = {facts['flops'] / 1e9:.3f} GFLOPs a picture; peaks measured here, "
        f"{facts['peaks']['bandwidth_gbytes_s']:.1f} GB/s of memory"
    )
    if facts.get("bound") and facts.get("utilisation") is not None:  # no layer times: neither
        note += f"; mostly {facts['bound']}-bound, {facts['utilisation']:.1%} of the roof over the whole forward pass"
    under = facts.get("peak_under_measured")
    said = text(f"{note}.", sentence(above_roof(len(under))) if under else None)
    return section("roofline", "Roofline", said, figure(drawn) if drawn else "", how="roofline")


OPERATORS = ("operator", "calls", "self ms", "share", "with its callees ms", "on the GPU ms")


def operators(rows: Sequence[dict[str, Any]]) -> list[list[Any]]:
    return [
        [
            row["name"],
            float(row["calls"]),
            row["self_ms"],
            Share(row["share"]),
            row["total_ms"],
            row["device_ms"] or None,
        ]
        for row in rows
    ]


def torch(session: SavedSession) -> str:
    """Operators by their own time; the same apart for every shape."""
    facts = found_by(session, "torch")
    if facts is None:
        return ""
    note = (
        f"Milliseconds a frame, over {facts['frames']} steady frames; a forward pass took {facts['forward_ms']:.3f} ms "
        f"and {facts['profiled_ms']:.3f} ms under the profiler ({facts['slowdown'] - 1:+.1%}): shares may be read off "
        f"this, rates may not. The trace lies in the session: {facts['trace']}."
    )
    by_name = table("operators", OPERATORS, operators(facts["rows"]))
    rows = [
        [*one, row["shapes"]]
        for one, row in zip(operators(facts["by_shape"]), facts["by_shape"], strict=True)
    ]
    by_shape = table("shapes", (*OPERATORS, "shapes of its inputs"), rows)
    apart = folded(
        f"by shape: the {len(rows)} longest", filter_of("shapes", "operators and shapes"), by_shape
    )
    heading = "torch's operators"
    return section(
        "torch",
        heading,
        text(note),
        filter_of("operators", "operators"),
        by_name,
        apart,
        how="torch",
    )


def device(session: SavedSession) -> str:
    """A GPU: busy, idle and why; host and device side by side."""
    facts = found_by(session, "device")
    if facts is None:
        return ""
    parts = [("infer", "busy", facts["busy_ms"])]
    kinds = ("other", "wait")
    parts += [(kinds[at % 2], cause, ms) for at, (cause, ms) in enumerate(facts["idle_ms"].items())]
    said = text(
        f"{facts['device']}: busy for {facts['busy_share']:.1%} of {facts['window_ms']:.2f} ms, {facts['kernels']} "
        f"kernels in {facts['batches']} batches; {facts['gaps']} gaps, the longest {facts['longest_gap_ms']:.3f} ms.",
        "Launch-bound: it is idle for more than half, mostly while the host prepares and launches; fewer or larger "
        "kernels, CUDA graphs or a larger batch help, a faster GPU does not."
        if facts["launch_bound"]
        else "Not launch-bound.",
    )
    drawn = key_of([(kind, name) for kind, name, _ in parts])
    drawn += figure(drawings.bar(parts, "ms"), "the window, busy and idle") + _lanes(facts)
    gaps = [
        [at + 1, row["at_ms"], row["ms"], row["cause"]]
        for at, row in enumerate(facts.get("longest_gaps", []))
    ]
    below = (
        folded(
            f"the {len(gaps)} longest gaps", table("gaps", ("gap", "at ms", "ms", "cause"), gaps)
        )
        if gaps
        else ""
    )
    rows = [
        [row["name"], float(row["calls"]), row["self_ms"], row["device_ms"], Share(row["share"])]
        for row in facts.get("rows", [])
    ]
    if rows:
        columns = ("operator", "calls a batch", "host ms", "device ms", "share of both")
        below += filter_of("host-device", "operators") + table("host-device", columns, rows)
    return section("device", "Host and device", said, drawn, below, how="device")


def _lanes(facts: dict[str, Any]) -> str:
    """What the host and the GPU did, over the first part of the window."""
    shown = facts.get("shown")
    if not shown:
        return ""
    slices = [
        (lane, kind, name, start, end)
        for lane, (name, kind) in enumerate((("host", "preprocess"), ("device", "infer")))
        for start, end in shown[name]
    ]
    drawn = drawings.lanes(("host", "device"), slices, shown["until_ms"])
    caption = (
        f"the first {shown['until_ms']:.2f} ms of the window; gaps of the device are idle time"
    )
    return figure(drawn, caption) + zoom_buttons("Dragging moves.")


def sweep(session: SavedSession) -> str:
    """Latency and throughput over the batch, a curve a precision, each with its knee; memory and agreement beside."""
    facts = found_by(session, "sweep")
    if facts is None:
        return ""
    ran = [row for row in facts["rows"] if row["error"] is None and row["batch_ms"] is not None]
    curves: dict[str, dict[str, list[tuple[float, float]]]] = {"latency": {}, "throughput": {}}
    knees: dict[str, dict[str, tuple[float, float, str]]] = {"latency": {}, "throughput": {}}
    for row in sorted(ran, key=lambda row: int(row["batch"])):
        precision, batch = row["precision"], int(row["batch"])
        values = {"latency": row["batch_ms"], "throughput": row["fps"]["inference"]["median"]}
        for name, value in values.items():
            curves[name].setdefault(precision, []).append((float(batch), value))
            if facts["knees"].get(precision) == batch:
                knees[name][precision] = (float(batch), value, f"knee of {precision}")
    units = {"latency": "ms a batch", "throughput": "inference FPS"}
    drawn = "".join(
        figure(
            drawings.lines(lines, "pictures a batch", units[name], knees[name]),
            f"{name}: {units[name]}",
        )
        for name, lines in curves.items()
        if lines
    )
    columns = (
        "variant",
        "precision",
        "batch",
        "inference FPS",
        "lowest",
        "highest",
        "ms a batch",
        "end-to-end FPS",
        "memory MB",
        "agrees",
        "went",
    )
    note = (
        f"{facts['rounds']} rounds of {facts['frames']} frames in turn on {facts['engine']}, medians; agrees: matched "
        f"boxes with {facts['reference']}. The knee is the least batch within 5% of the best inference FPS."
    )
    body = filter_of("sweep", "variants") + table(
        "sweep", columns, [_variant(row) for row in facts["rows"]]
    )
    keys = legend(list(curves["latency"]))
    return section("sweep", "Batches and precisions", text(note), keys, drawn, body, how="sweep")


def _variant(row: dict[str, Any]) -> list[Any]:
    rates = (row["fps"] or {}).get("inference") or {}
    whole = (row["fps"] or {}).get("end_to_end") or {}
    return [
        row["name"],
        row["precision"],
        int(row["batch"]),
        rates.get("median"),
        rates.get("low"),
        rates.get("high"),
        row["batch_ms"],
        whole.get("median"),
        row["memory_mb"],
        Share((row["agreement"] or {}).get("matched")),
        row["error"] or "ran",
    ]


def memory(session: SavedSession) -> str:
    facts = found_by(session, "memory")
    if facts is None:
        return ""
    step = -(-len(facts["samples"]) // MOST_POINTS)
    points = [(sample["t_s"], sample["rss_mb"]) for sample in facts["samples"][::step]]
    slope = facts["slope_mb_per_1000_frames"]
    growth = (
        facts["slope_reason"]
        if slope is None
        else f"{slope:+.2f} MB per 1000 frames in the second half"
    )
    said = f"Resident: {facts['start_mb']:.0f} MB at the start, {facts['peak_mb']:.0f} MB at the peak; growth: {growth}."
    peaks = [[name, mb] for name, mb in facts.get("peak_by_stage_mb", {}).items() if mb is not None]
    below = table("memory", ("stage", "highest MB while it ran"), peaks) if peaks else ""
    return section(
        "memory", "Memory", figure(drawings.curve(points, "s", "MB"), said), below, how="memory"
    )


def energy(session: SavedSession) -> str:
    """Joules of the idle baseline and of the run, and power over both as the counters told it."""
    facts = found_by(session, "energy")
    if facts is None:
        return ""
    tags = [tag for tag in TAGS if any(tag in row for row in facts["rows"])]
    rows = [
        [row["tag"], row["duration"], *(row.get(tag) for tag in tags), row["joules_per_frame"]]
        for row in facts["rows"]
    ]
    columns = ("of", "seconds", *(f"{tag} J" for tag in tags), "J a frame")
    each = facts["frames_per_joule"]
    note = (
        f"{facts['joules_per_frame']:.3f} J a frame{f', {each:.3g} frames a joule' if each else ''}: package, memory "
        "and GPU, the idle power taken off; a core is part of its package."
    )
    return section(
        "energy",
        "Energy",
        text(note),
        _power(facts, tags),
        table("energy", columns, rows),
        how="energy",
    )


def _power(facts: dict[str, Any], tags: Sequence[str]) -> str:
    samples = facts.get("samples", [])
    if len(samples) < 2:
        return ""
    first = samples[0]["timestamp"]
    series = {
        tag: [
            (row["timestamp"] - first + row["duration"] / 2, row[tag] / row["duration"])
            for row in samples[:: -(-len(samples) // MOST_POINTS)]
            if tag in row and row["duration"] > 0
        ]
        for tag in tags
    }
    begin = next(
        (row["timestamp"] - first for row in samples if row["tag"].startswith("run")), None
    )
    marks = {} if begin is None else {"loading and the run": begin}
    drawn = drawings.lines(series, "s", "W", at=marks)
    return legend(list(series)) + figure(drawn, "power over time, idle power and loading included")


def counters(session: SavedSession) -> str:
    facts = found_by(session, "counters")
    if facts is None:
        return ""
    rows: list[list[Any]] = [
        ["instructions a cycle", facts["ipc"]],
        ["cache misses", Share(facts["cache_miss_rate"])],
        ["instructions a frame", facts["instructions_per_frame"]],
    ]
    rows += [[name, count] for name, count in facts["counts"].items()]
    note = text(f"Of a run in a process of its own; {facts['includes']}.")
    return section(
        "counters", "Counters", note, table("counters", ("what", "value"), rows), how="passes"
    )


def python(session: SavedSession) -> str:
    facts = found_by(session, "python")
    if facts is None:
        return ""
    rows = [
        [row["function"], row["calls"], row["self_s"], row["total_s"]] for row in facts["functions"]
    ]
    body = table("python", ("function", "calls", "self s", "with its callees s"), rows)
    inside = folded(
        f"{len(rows)} functions of the longest self time", filter_of("python", "functions"), body
    )
    sums = facts.get("folded", {})
    whole = sum(sums.values()) or 1.0
    owners = [
        [name, seconds, Share(seconds / whole)]
        for name, seconds in sums.items()
        if seconds >= LEAST * whole
    ]
    above = table("owners", ("room or library", "self s", "share"), owners) if owners else ""
    tree = (
        f'<div class="scroll"><pre class="tree">{escape(facts["tree"])}</pre></div>'
        if facts.get("tree")
        else ""
    )
    inside += folded("call tree by pyinstrument, a run of its own", tree) if tree else ""
    return section("functions", "Python", above, inside, how="python")
