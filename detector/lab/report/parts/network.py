"""Parts of the report on the network: its layers, torch's operators, a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from detector.core.errors.text import counted
from detector.core.tables import Column, Table
from detector.lab.analysis.layers import (
    LEAST_TIME,
    SHEET,
    describe_above_roof,
    describe_outside,
    describe_uncounted,
    far_from_roof,
)
from detector.lab.report.html import drawings
from detector.lab.report.html.drawings import (
    colour_key,
    details,
    figure,
    filter_box,
    table,
    text,
    zoom_buttons,
)
from detector.lab.report.part import How, Part
from detector.lab.session.network import (
    DeviceFacts,
    LayerRow,
    LayersFacts,
    Operator,
    Peaks,
    RooflineFacts,
    SheetRoof,
    TorchFacts,
)
from detector.lab.session.read import SavedSession

MAX_LAYERS, FEW_LAYERS = 15, 5  # rows shown by default, and in short output
MAX_OPERATORS = 15  # rows on a terminal
OF_THE_ROOF = 3  # show this many layers closest to the roofline, and as many farthest from it


def as_sentence(line: str | None) -> str | None:
    return f"{line[0].upper()}{line[1:]}." if line else None


def shape_text(row: LayerRow) -> str | None:
    return "x".join(map(str, row.shape)) if row.shape else None


LAYERS = (
    Column("layer", value=lambda row: row.name),
    Column("type", out=11),
    Column("order", "position", out=2),
    Column("shape", "output shape", value=lambda row: shape_text(row), whole=True, out=3),
    Column("ms", form=".3f"),
    Column("share", form=".1%"),
    Column("parameters", out=1),
    Column("mmacs", "MMACs", ".1f", value=lambda row: row.macs / 1e6, out=1),
    Column("mflops", "MFLOPs", ".1f", value=lambda row: row.flops / 1e6, out=8),
    Column("kb", "KB", ".0f", value=lambda row: row.bytes / 1e3 or None, out=6),
    Column("gflops_s", "GFLOP/s", ".1f", out=10),
    Column("gbytes_s", "GB/s", ".1f", out=5),
    Column("intensity", "FLOP/byte", ".1f", out=4),
    Column("precision", "runs in", out=7),
    Column("utilisation", "share of roofline", ".0%", out=12),
    Column("bound", "limited by", value=lambda row: row.bound or "-", out=9),
    Column("flag", "note", value=lambda row: row.flag or ""),
)
TYPES = (
    Column("type"),
    Column("layers"),
    Column("ms", form=".3f"),
    Column("share", form=".1%"),
    Column("mmacs", "MMACs", ".1f", value=lambda row: row.macs / 1e6),
)

BLOCKS = (
    Column("block"),
    Column("layers"),
    Column("ms", form=".3f"),
    Column("share", form=".1%"),
    Column("parameters"),
    Column("mmacs", "MMACs", ".1f", value=lambda row: row.macs / 1e6),
    Column("mflops", "MFLOPs", ".1f", value=lambda row: row.flops / 1e6, out=1),
    Column("kb", "KB", ".0f", value=lambda row: row.bytes / 1e3, out=2),
)


def blocks_table(facts: LayersFacts) -> Table:
    title = "layers by block of the model, in model order"
    return Table("blocks", BLOCKS, facts.by_block, title, most=MAX_LAYERS, rest="blocks")


def roof_table(facts: LayersFacts) -> Table:
    best, worst = far_from_roof(facts.rows, OF_THE_ROOF)
    least = f"layers of at least {LEAST_TIME:.0%} of the time"
    title = f"closest to and farthest from the roofline ({least})"
    whole = Table("roof", LAYERS, [*best, *worst], title)
    return whole.pick("layer", "type", "ms", "share", "intensity", "utilisation", "bound")


def layers_table(facts: LayersFacts, count: int | None = None) -> Table:
    rows = sorted(facts.rows, key=lambda row: -row.ms)[:count]
    title = (
        f"the {len(rows)} longest layers of {facts.engine} {facts.precision}, "
        f"{counted(facts.threads, 'thread')}; sum of all {len(facts.rows)}: {facts.sum_ms:.3f} ms, "
        f"{facts.off_by:+.1%} compared with a forward pass ({facts.forward_ms:.3f} ms)"
    )
    if facts.batch > 1:
        title += f"; figures of a batch of {facts.batch}"
    unknown = any(row.utilisation is None for row in rows)
    note = "-: the layer has no FLOPs, or its precision has no measured peak" if unknown else ""
    return Table("layers", LAYERS, rows, title, note, most=MAX_LAYERS, rest="layers")


def longest_layers(facts: LayersFacts) -> Iterator[Table | str]:
    yield layers_table(facts, FEW_LAYERS).without("flag")
    if facts.flag:
        yield f"note: {facts.flag}"


def describe_layers(facts: LayersFacts) -> Iterator[Table | str]:
    yield layers_table(facts, MAX_LAYERS).without("flag")
    if facts.by_type:
        yield Table("types", TYPES, facts.by_type, "layers by type")
    if facts.by_block:
        yield blocks_table(facts)
    if (roof := roof_table(facts)).rows:
        yield roof
    if outside := describe_outside(facts):
        yield outside
    yield from (f"note: {note}" for note in (facts.flag, *facts.notes) if note)


def layers(session: SavedSession, facts: LayersFacts) -> str:
    summary = text(
        f"{counted(len(facts.rows), 'layer')}: {facts.sum_ms:.2f} ms in total; a forward "
        f"pass took {facts.forward_ms:.2f} ms. The longest are first.",
        *map(as_sentence, (describe_outside(facts), facts.flag, *facts.notes)),
    )
    types = table(Table("types", TYPES, facts.by_type)) if facts.by_type else ""
    blocks = table(blocks_table(facts)) if facts.by_block else ""
    return summary + filter_box("layers", "layers") + table(layers_table(facts)) + blocks + types


def roofline(session: SavedSession, facts: RooflineFacts) -> str:
    measured = session.facts(LayersFacts)
    if measured is None:
        return ""
    dots = [(row.name, row.intensity or 0.0, row.gflops_s or 0.0) for row in measured.rows]
    peaks = facts.peaks
    slopes = {level.name: level.gbytes_s for level in peaks.levels}
    slopes = slopes or {"memory": peaks.bandwidth_gbytes_s}
    drawn = drawings.roofline(dots, peaks.gflops_s, slopes) if peaks.gflops_s else ""
    return text(*map(as_sentence, describe_roofline(facts))) + (figure(drawn) if drawn else "")


def _bound_by(facts: RooflineFacts) -> str:
    if facts.bound == "neither":
        return "neither compute-bound nor memory-bound"
    phrases = {"launch overhead": "launch overhead", None: "-"}
    return phrases.get(facts.bound) or f"{facts.bound}-bound"


def _peaks_text(peaks: Peaks) -> str:
    kernels = ", ".join(
        f"{name} {peak:.1f} GFLOP/s{_spread_text(peaks.spread.get(name))} "
        f"({peaks.by.get(name) or '-'})"
        for name, peak in peaks.gflops_s.items()
    )
    spread_of = {(one.bytes, one.threads): one.spread for one in peaks.bandwidths}
    largest = max(spread_of, default=None)
    slopes = [f"{one.name} {one.gbytes_s:.1f}" for one in peaks.levels if one.name != "memory"]
    memory = f"memory {peaks.bandwidth_gbytes_s:.1f} GB/s"
    memory += _spread_text(None if largest is None else spread_of[largest])
    return "; ".join(filter(None, (kernels, ", ".join([*slopes, memory]))))


def _spread_text(spread: float | None) -> str:
    return "" if spread is None else f" \u00b1{spread:.0%}"


def sheet_text(roof: SheetRoof) -> str:
    return (
        f"according to the data sheet ({roof.precision} {roof.peak_gflops_s:.1f} GFLOP/s, "
        f"{roof.bandwidth_gbytes_s:.1f} GB/s, ridge {roof.ridge:.1f} FLOPs per byte), the "
        f"forward pass reaches {roof.of_peak:.1%} of the peak and {roof.of_bandwidth:.1%} of "
        f"the bandwidth: bound by {roof.bound}"
    )


def describe_roofline(facts: RooflineFacts) -> Iterator[str]:
    peaks, least = facts.peaks, "at least " if facts.uncounted else ""
    if not (facts.macs or facts.uncounted):
        yield "roofline: the model file contains no graph, so nothing was counted"
    else:
        rate = "-" if facts.gflops_s is None else f"{facts.gflops_s:.1f}"
        share = "-" if facts.utilisation is None else f"{facts.utilisation:.1%}"
        doubt = f" (unreliable: {'; '.join(facts.doubts)})" if facts.doubts else ""
        yield (
            f"roofline: {least}{facts.macs / 1e9:.3f} GMACs = {facts.flops / 1e9:.3f} GFLOPs "
            f"per image, {rate} GFLOP/s, {share} of the roofline{doubt}; most layer time is "
            f"{_bound_by(facts)}"
        )
        if facts.intensity is not None:
            ridges = ", ".join(
                f"{name} {ridge:.1f}" for name, ridge in facts.ridge.items() if ridge is not None
            )
            yield (
                f"intensity: {facts.intensity:.1f} FLOPs per byte over the whole model; ridge of "
                f"main memory: {ridges or '-'} (lower for layers that fit in a cache)"
            )
    origin = f"of the {SHEET}" if {*peaks.by.values()} == {SHEET} else "measured here"
    yield f"peaks {origin}: {_peaks_text(peaks)}"
    if facts.sheet is not None:
        yield sheet_text(facts.sheet)
    if facts.uncounted:
        yield f"note: {describe_uncounted(facts.uncounted)}"
    if facts.peak_under_measured:
        yield f"note: {describe_above_roof(len(facts.peak_under_measured))}"


OPERATORS = (
    Column("name", "operator", longest=60),
    Column("calls", form=".1f", out=3),
    Column("self_ms", "self", ".3f", "ms"),
    Column("share", form=".1%"),
    Column("total_ms", "with its callees", ".3f", "ms", out=4),
    Column("cpu_avg_ms", "per call", ".3f", "ms", out=2),
    Column("device_ms", "GPU self", ".3f", "ms", out=5),
    Column("device_total_ms", "GPU total", ".3f", "ms", out=1),
    Column("device_avg_ms", "GPU per call", ".3f", "ms", out=1),
    Column("self_cpu_mb", "self", ".2f", "MB", out=3),
    Column("cpu_mb", "total", ".2f", "MB", out=1),
    Column("self_device_mb", "GPU self", ".2f", "MB", out=3),
    Column("device_mb", "GPU total", ".2f", "MB", out=1),
    Column("shapes", "input shapes", whole=True, longest=40),
)

OF_GPU = ("device_ms", "device_total_ms", "device_avg_ms", "self_device_mb", "device_mb")


def _frames_text(facts: TorchFacts) -> str:
    frames = counted(facts.frames, "steady frame")
    return frames if facts.batch == 1 else f"{frames} in batches of {facts.batch}"


def _operators(facts: TorchFacts, name: str, rows: Sequence[Operator], title: str) -> Table:
    operators = Table(name, OPERATORS, rows, title, unit="ms")
    empty = [one.key for one in OPERATORS if all(one.of(row) is None for row in rows)]
    return operators.without(*empty, *(OF_GPU if facts.device == "cpu" else ()))


def operators_table(facts: TorchFacts) -> Table:
    slow = f"the fastest pass took {facts.slowdown:.2f} times as long under the profiler"
    title = f"torch's operators over {_frames_text(facts)}, ms and MB per frame ({slow})"
    return _operators(facts, "operators", facts.rows, title).without("shapes")


def shapes_table(facts: TorchFacts) -> Table:
    title = "torch's operators by input shape, ms and MB per frame"
    return _operators(facts, "shapes", facts.by_shape, title)


def _operators_sum(facts: TorchFacts) -> str:
    return (
        f"self time of all operators: {facts.self_ms:.3f} ms per frame; a profiled pass: "
        f"{facts.profiled_ms / facts.batch:.3f} ms per frame (both are means)"
    )


def describe_torch(facts: TorchFacts) -> Iterator[Table | str]:
    yield operators_table(facts).first(MAX_OPERATORS)
    yield shapes_table(facts).first(MAX_OPERATORS)
    yield _operators_sum(facts)
    if facts.flag:
        yield f"note: {facts.flag}"
    yield f"trace: {facts.trace} in the session"


def torch(session: SavedSession, facts: TorchFacts) -> str:
    note = (
        f"Milliseconds and MB per frame over {_frames_text(facts)}, as counted by "
        "torch.profiler; a negative number of MB means freed memory. The fastest pass took "
        f"{facts.slowdown:.2f} times as long under the profiler, so trust the shares but not "
        f"the rates. The session contains the trace: {facts.trace}."
    )
    by_shape = details(
        f"by shape: the {len(facts.by_shape)} longest",
        filter_box("shapes", "operators and shapes"),
        table(shapes_table(facts)),
    )
    by_name = filter_box("operators", "operators") + table(operators_table(facts))
    summary = text(note, as_sentence(_operators_sum(facts)), as_sentence(facts.flag))
    return summary + by_name + by_shape


GAPS = (
    Column("gap", value=lambda one: one[0]),
    Column("at_ms", "at ms", value=lambda one: one[1].at_ms),
    Column("ms", value=lambda one: one[1].ms),
    Column("cause", value=lambda one: one[1].cause),
)
SIDES = (
    Column("name", "operator"),
    Column("calls", "calls per batch", ".1f"),
    Column("self_ms", "host, per batch", ".3f", "ms"),
    Column("device_ms", "device, per batch", ".3f", "ms"),
    Column("share", "share of total", ".1%"),
)


def device(session: SavedSession, facts: DeviceFacts) -> str:
    parts = [("infer", "busy", facts.busy_ms)]
    kinds = ("other", "wait")
    parts += [(kinds[at % 2], cause, ms) for at, (cause, ms) in enumerate(facts.idle_ms.items())]
    summary = text(
        f"{facts.device}: busy for {facts.busy_share:.1%} of {facts.window_ms:.2f} ms, "
        f"{counted(facts.kernels, 'kernel')} in {counted(facts.batches, 'batch')}; "
        f"{counted(facts.gaps, 'gap')}, the longest {facts.longest_gap_ms:.2f} ms.",
        "Launch-bound: the GPU is idle more than half of the time, mostly while the host "
        "prepares and launches work. Fewer or larger kernels, CUDA graphs or a larger batch "
        "help; a faster GPU does not."
        if facts.launch_bound
        else "Not launch-bound.",
    )
    drawn = colour_key([(kind, name) for kind, name, _ in parts])
    drawn += figure(drawings.bar(parts, "ms"), "busy and idle time of the window") + _lanes(facts)
    if facts.longest_gaps:
        gaps = Table("gaps", GAPS, list(enumerate(facts.longest_gaps, 1)))
        drawn += details(f"the {len(gaps.rows)} longest gaps", table(gaps))
    if facts.rows:
        sides = Table("host-device", SIDES, facts.rows)
        drawn += filter_box("host-device", "operators") + table(sides)
    return summary + drawn


def _lanes(facts: DeviceFacts) -> str:
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
    return figure(drawn, caption) + zoom_buttons("Drag to move.")


def describe_device(facts: DeviceFacts) -> Sequence[str]:
    causes = ", ".join(f"{cause} {ms:.2f} ms" for cause, ms in facts.idle_ms.items())
    bound = (
        "; launch-bound: the GPU waits for the host to start its kernels"
        if facts.launch_bound
        else ""
    )
    busy = (
        f"busy {facts.busy_share:.1%} of {facts.window_ms:.2f} ms, "
        f"{counted(facts.kernels, 'kernel')}"
    )
    return [f"{facts.device}: {busy}; idle: {causes or 'never'}{bound}"]


LAYERS_HOW = How(
    "layers",
    "layers",
    "Medians of a separate run under the engine's own profiler. They show each layer's share of "
    "the time, but not the speed of the whole run. FLOPs are 2 x MACs, counted on the graph.",
    "Instruments and passes",
)
ROOFLINE = How(
    "roofline",
    "roofline",
    "Peaks are measured on this computer, with as many threads as the engine uses: compute by "
    "running convolutions on the engine, and bandwidth by reading and copying arrays. "
    "A layer's roofline uses the bandwidth of the memory level that its data fits in. A value "
    "above 105% means that the peak was measured too low; it is not clamped.",
    "Instruments and passes",
)
TORCH = How(
    "torch",
    "torch's operators",
    "Five batches under torch.profiler, after three warm-up batches.",
    "torch and device",
)
DEVICE = How(
    "device",
    "host and device",
    "Kernels and operators of ten batches as recorded by torch.profiler (CUPTI). Busy is "
    "the union of all kernels and copies; idle is the rest of the window.",
    "torch and device",
)
PARTS = (
    Part(
        "layers",
        "Layers",
        80,
        layers,
        how=LAYERS_HOW,
        facts=LayersFacts,
        says=describe_layers,
        brief=longest_layers,
    ),
    Part(
        "roofline",
        "Roofline",
        90,
        roofline,
        how=ROOFLINE,
        facts=RooflineFacts,
        says=describe_roofline,
    ),
    Part(
        "torch",
        "torch's operators",
        100,
        torch,
        how=TORCH,
        facts=TorchFacts,
        says=describe_torch,
        detail=True,
    ),
    Part(
        "device",
        "Host and device",
        110,
        device,
        how=DEVICE,
        facts=DeviceFacts,
        says=describe_device,
        detail=True,
    ),
)
