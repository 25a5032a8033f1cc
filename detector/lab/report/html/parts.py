"""Sections of the HTML report that show the facts of passes. A pass that did not run has none."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from detector.core.errors.text import counted
from detector.core.wings import Rounded, Share
from detector.lab.analysis.layers import describe_above_roof, describe_outside, describe_uncounted
from detector.lab.analysis.noise import decimals
from detector.lab.report.html import drawings
from detector.lab.report.html.drawings import (
    figure,
    filter_of,
    folded,
    key_of,
    legend,
    section,
    table,
    thinned,
    zoom_buttons,
)
from detector.lab.session.passes import (
    CountersFacts,
    DeviceFacts,
    EnergyFacts,
    Interval,
    LayersFacts,
    MemoryFacts,
    Operator,
    PythonFacts,
    RooflineFacts,
    SweepFacts,
    SweepRow,
    TorchFacts,
)
from detector.lab.session.read import SavedSession

LEAST = 0.005  # of Python's time: a room or library with less is not listed
MOST_LAYERS = 15  # that are shown before the others are asked for
TAGS = ("package", "core", "dram", "gpu")


def text(*sentences: str | None) -> str:
    return f"<p>{escape(' '.join(one for one in sentences if one))}</p>"


def sentence(line: str | None) -> str | None:
    return f"{line[0].upper()}{line[1:]}." if line else None


def measured_on(session: SavedSession, name: str) -> str:
    """What ran the network in a pass; empty for sessions of earlier versions."""
    record = session.passes.get(name)
    if record is None or record.ran is None:
        return ""
    return f'<p class="note">Measured on {escape(record.ran.text)}.</p>'


def layers(session: SavedSession) -> str:
    facts = session.facts(LayersFacts)
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
            row.name,
            row.type,
            row.ms,
            Share(row.share),
            row.macs / 1e6,
            row.flops / 1e6,
            row.bytes / 1e3,
            row.gflops_s,
            row.gbytes_s,
            row.intensity,
            row.precision,
            Share(row.utilisation),
            row.bound or "",
            row.flag or "",
        ]
        for row in sorted(facts.rows, key=lambda row: -row.ms)
    ]
    note = (
        f"{counted(len(rows), 'layer')}: {facts.sum_ms:.2f} ms together; a forward pass took "
        f"{facts.forward_ms:.2f} ms. The longest come first."
    )
    types = [[row.type, row.layers, row.ms, Share(row.share)] for row in facts.by_type]
    body = table("types", ("type", "layers", "ms", "share"), types) if types else ""
    body = (
        filter_of("layers", "layers")
        + table("layers", columns, rows, most=MOST_LAYERS, rest="layers")
        + body
    )
    said = text(
        note,
        sentence(describe_outside(facts)),
        *(sentence(one) for one in (facts.flag, *facts.notes)),
    )
    return section("layers", "Layers", measured_on(session, "layers"), said, body, how="layers")


def roofline(session: SavedSession) -> str:
    facts, measured = session.facts(RooflineFacts), session.facts(LayersFacts)
    if facts is None or measured is None:
        return ""
    dots = [(row.name, row.intensity or 0.0, row.gflops_s or 0.0) for row in measured.rows]
    used = {row.precision for row in measured.rows if row.flops}
    roofs = {name: peak for name, peak in facts.peaks.gflops_s.items() if name in used}
    drawn = drawings.roofline(dots, roofs, facts.peaks.bandwidth_gbytes_s) if roofs else ""
    note = (
        f"{'At least ' if facts.uncounted else ''}{facts.macs / 1e9:.2f} GMACs = "
        f"{facts.flops / 1e9:.2f} GFLOPs a picture. The peaks were "
        f"measured here; memory reaches {facts.peaks.bandwidth_gbytes_s:.1f} GB/s."
    )
    if facts.bound and facts.utilisation is not None:  # without layer times there is neither
        note += (
            f" The model is mostly {facts.bound}-bound and reaches {facts.utilisation:.1%} of the "
            "roof over the whole forward pass."
        )
    under = facts.peak_under_measured
    said = text(
        note,
        sentence(describe_uncounted(facts.uncounted)) if facts.uncounted else None,
        sentence(describe_above_roof(len(under))) if under else None,
    )
    return section(
        "roofline",
        "Roofline",
        measured_on(session, "roofline"),
        said,
        figure(drawn) if drawn else "",
        how="roofline",
    )


OPERATORS = ("operator", "calls", "self ms", "share", "with its callees ms", "on the GPU ms")


def operators(rows: Sequence[Operator]) -> list[list[Any]]:
    return [
        [
            row.name,
            float(row.calls),
            row.self_ms,
            Share(row.share),
            row.total_ms,
            row.device_ms or None,
        ]
        for row in rows
    ]


def torch(session: SavedSession) -> str:
    """Operators by their own time, and the same for every shape of their inputs."""
    facts = session.facts(TorchFacts)
    if facts is None:
        return ""
    note = (
        f"Milliseconds a frame, over {counted(facts.frames, 'steady frame')}. A forward pass took "
        f"{facts.forward_ms:.2f} ms, and {facts.profiled_ms:.2f} ms under the profiler "
        f"({facts.slowdown:.2f} times as long), so trust the shares and not the rates. The session "
        f"holds the trace: {facts.trace}."
    )
    by_name = table("operators", OPERATORS, operators(facts.rows))
    rows = [
        [*one, row.shapes]
        for one, row in zip(operators(facts.by_shape), facts.by_shape, strict=True)
    ]
    by_shape = table("shapes", (*OPERATORS, "shapes of its inputs"), rows)
    apart = folded(
        f"by shape: the {len(rows)} longest", filter_of("shapes", "operators and shapes"), by_shape
    )
    heading = "torch's operators"
    return section(
        "torch",
        heading,
        measured_on(session, "torch"),
        text(note),
        filter_of("operators", "operators"),
        by_name,
        apart,
        how="torch",
    )


def device(session: SavedSession) -> str:
    """When a GPU was busy and why it was idle; host and device side by side."""
    facts = session.facts(DeviceFacts)
    if facts is None:
        return ""
    parts = [("infer", "busy", facts.busy_ms)]
    kinds = ("other", "wait")
    parts += [(kinds[at % 2], cause, ms) for at, (cause, ms) in enumerate(facts.idle_ms.items())]
    said = text(
        f"{facts.device}: busy for {facts.busy_share:.1%} of {facts.window_ms:.2f} ms, "
        f"{counted(facts.kernels, 'kernel')} in {counted(facts.batches, 'batch')}; "
        f"{counted(facts.gaps, 'gap')}, the longest "
        f"{facts.longest_gap_ms:.2f} ms.",
        "Launch-bound: the GPU is idle for more than half of the time, mostly while the host "
        "prepares and launches. Fewer or larger kernels, CUDA graphs or a larger batch help; a "
        "faster GPU does not."
        if facts.launch_bound
        else "Not launch-bound.",
    )
    drawn = key_of([(kind, name) for kind, name, _ in parts])
    drawn += figure(drawings.bar(parts, "ms"), "the window, busy and idle") + _lanes(facts)
    gaps = [[at + 1, row.at_ms, row.ms, row.cause] for at, row in enumerate(facts.longest_gaps)]
    below = (
        folded(
            f"the {len(gaps)} longest gaps", table("gaps", ("gap", "at ms", "ms", "cause"), gaps)
        )
        if gaps
        else ""
    )
    rows = [
        [row.name, float(row.calls), row.self_ms, row.device_ms, Share(row.share)]
        for row in facts.rows
    ]
    if rows:
        columns = ("operator", "calls a batch", "host ms", "device ms", "share of both")
        below += filter_of("host-device", "operators") + table("host-device", columns, rows)
    return section(
        "device",
        "Host and device",
        measured_on(session, "device"),
        said,
        drawn,
        below,
        how="device",
    )


def _lanes(facts: DeviceFacts) -> str:
    """What the host and the GPU did at the beginning of the window."""
    shown = facts.shown
    if not shown:
        return ""
    slices = [
        (lane, kind, name, start, end)
        for lane, (name, kind, side) in enumerate(
            (("host", "preprocess", shown.host), ("device", "infer", shown.device))
        )
        for start, end in side
    ]
    drawn = drawings.lanes(("host", "device"), slices, shown.until_ms)
    caption = f"the first {shown.until_ms:.2f} ms of the window; gaps of the device are idle time"
    return figure(drawn, caption) + zoom_buttons("Dragging moves.")


def sweep(session: SavedSession) -> str:
    """Latency and throughput over the batch size: one curve a precision, each with its knee."""
    facts = session.facts(SweepFacts)
    if facts is None:
        return ""
    ran = [
        (row, row.batch_ms, rates.median)
        for row in sorted(facts.rows, key=lambda row: row.batch)
        if row.error is None and row.batch_ms and (rates := row.fps.get("inference"))
    ]
    curves: dict[str, dict[str, list[tuple[float, float]]]] = {"latency": {}, "throughput": {}}
    knees: dict[str, dict[str, tuple[float, float, str]]] = {"latency": {}, "throughput": {}}
    for row, batch_ms, rate in ran:
        precision, batch = row.precision, row.batch
        for name, value in (("latency", batch_ms), ("throughput", rate)):
            curves[name].setdefault(precision, []).append((float(batch), value))
            if facts.knees.get(precision) == batch:
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
        f"Medians of {counted(facts.rounds, 'round')} of {counted(facts.frames, 'frame')}, in "
        f"turn on {facts.engine}. "
        f"The column agrees is the share of boxes that match those of {facts.reference}. The "
        "knee is the smallest batch within 5% of the best inference FPS."
    )
    body = filter_of("sweep", "variants") + table(
        "sweep", columns, [_variant(row) for row in facts.rows]
    )
    keys = legend(list(curves["latency"]))
    return section(
        "sweep",
        "Batches and precisions",
        measured_on(session, "sweep"),
        text(note),
        keys,
        drawn,
        body,
        how="sweep",
    )


def _variant(row: SweepRow) -> list[Any]:
    rates, whole = row.fps.get("inference"), row.fps.get("end_to_end")
    return [
        row.name,
        row.precision,
        row.batch,
        *_round_alike(rates),
        row.batch_ms,
        _round_alike(whole)[0],
        row.memory_mb,
        Share(row.matched),
        row.error or "ran",
    ]


def _round_alike(rates: Interval | None) -> tuple[Rounded | None, ...]:
    """Median, lowest and highest: no more decimals than the rounds agree on."""
    if rates is None:
        return None, None, None
    shown = decimals(rates.high - rates.low)
    return tuple(Rounded(one, shown) for one in (rates.median, rates.low, rates.high))


def memory(session: SavedSession) -> str:
    facts = session.facts(MemoryFacts)
    if facts is None:
        return ""
    points = [(sample.t_s, sample.rss_mb) for sample in thinned(facts.samples)]
    slope = facts.slope_mb_per_1000_frames
    growth = (
        facts.slope_reason
        if slope is None
        else f"{slope:+.2f} MB per 1000 frames in the second half"
    )
    said = (
        f"Resident: {facts.start_mb:.0f} MB at the start, {facts.peak_mb:.0f} MB at the peak; "
        f"growth: {growth}."
    )
    peaks = [[name, mb] for name, mb in facts.peak_by_stage_mb.items() if mb is not None]
    below = table("memory", ("stage", "highest MB while it ran"), peaks) if peaks else ""
    return section(
        "memory",
        "Memory",
        measured_on(session, "memory"),
        figure(drawings.curve(points, "s", "MB"), said),
        below,
        how="memory",
    )


def energy(session: SavedSession) -> str:
    """Joules while idle and of the run, and the power over time as the counters told it."""
    facts = session.facts(EnergyFacts)
    if facts is None:
        return ""
    tags = [tag for tag in TAGS if any(row.joules(tag) is not None for row in facts.rows)]
    rows = [
        [row.tag, row.duration, *(row.joules(tag) for tag in tags), row.joules_per_frame]
        for row in facts.rows
    ]
    columns = ("of", "seconds", *(f"{tag} J" for tag in tags), "J a frame")
    each = facts.frames_per_joule
    note = (
        f"{facts.joules_per_frame:.2f} J a frame{f', {each:.3g} frames a joule' if each else ''}: "
        "package, memory and GPU, without the idle power. The cores are part of the package."
    )
    return section(
        "energy",
        "Energy",
        measured_on(session, "energy"),
        text(note),
        _power(facts, tags),
        table("energy", columns, rows),
        how="energy",
    )


def _power(facts: EnergyFacts, tags: Sequence[str]) -> str:
    samples = facts.samples
    if len(samples) < 2:
        return ""
    first = samples[0].timestamp
    series = {
        tag: [
            (row.timestamp - first + row.duration / 2, joules / row.duration)
            for row in thinned(samples)
            if (joules := row.joules(tag)) is not None and row.duration > 0
        ]
        for tag in tags
    }
    begin = next((row.timestamp - first for row in samples if row.tag.startswith("run")), None)
    marks = {} if begin is None else {"loading and the run": begin}
    drawn = drawings.lines(series, "s", "W", at=marks)
    return legend(list(series)) + figure(drawn, "power over time, with idle power and loading")


def counters(session: SavedSession) -> str:
    facts = session.facts(CountersFacts)
    if facts is None:
        return ""
    rows: list[list[Any]] = [
        ["instructions a cycle", facts.ipc],
        ["cache misses", Share(facts.cache_miss_rate)],
        ["instructions a frame", facts.instructions_per_frame],
    ]
    rows += [[name, count] for name, count in facts.counts.items()]
    note = text(f"Counted over a run in a process of its own, {facts.includes}.")
    return section(
        "counters",
        "Counters",
        measured_on(session, "counters"),
        note,
        table("counters", ("what", "value"), rows),
        how="passes",
    )


def python(session: SavedSession) -> str:
    facts = session.facts(PythonFacts)
    if facts is None:
        return ""
    rows = [[row.function, row.calls, row.self_s, row.total_s] for row in facts.functions]
    body = table("python", ("function", "calls", "self s", "with its callees s"), rows)
    inside = folded(
        f"{len(rows)} functions of the longest self time", filter_of("python", "functions"), body
    )
    sums = facts.folded
    whole = sum(sums.values()) or 1.0
    owners = [
        [name, seconds, Share(seconds / whole)]
        for name, seconds in sums.items()
        if seconds >= LEAST * whole
    ]
    above = table("owners", ("room or library", "self s", "share"), owners) if owners else ""
    tree = (
        f'<div class="scroll"><pre class="tree">{escape(facts.tree)}</pre></div>'
        if facts.tree
        else ""
    )
    inside += folded("call tree by pyinstrument, a run of its own", tree) if tree else ""
    return section(
        "functions", "Python", measured_on(session, "python"), above, inside, how="python"
    )
