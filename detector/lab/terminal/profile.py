"""A profile on a terminal: the facts of each pass as text or tables, or why it could not run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from detector.core.errors.text import counted
from detector.core.terminal.console import SafeConsole
from detector.core.terminal.run import new_table, number
from detector.lab.analysis.layers import describe_above_roof, describe_outside, describe_uncounted
from detector.lab.analysis.noise import decimals_of
from detector.lab.analysis.profile import describe_cost
from detector.lab.session.passes import (
    CountersFacts,
    CriticalPathFacts,
    DeviceFacts,
    EnergyFacts,
    Interval,
    LayersFacts,
    LoopFacts,
    MemoryFacts,
    PythonFacts,
    RooflineFacts,
    SweepFacts,
    TorchFacts,
    WhatIfFacts,
)
from detector.lab.session.profile import RecordingDocument
from detector.lab.session.read import SavedSession

LONGEST_FUNCTIONS, LARGEST_OWNERS = 10, 8


MOST_NAMES = 10  # rows of the dependency table on the path, and off it


def memory_text(facts: MemoryFacts) -> Text:
    slope = facts.slope_mb_per_1000_frames
    growth = (
        facts.slope_reason
        if slope is None
        else f"{slope:+.2f} MB per 1000 frames in the second half"
    )
    peaks = {name: mb for name, mb in facts.peak_by_stage_mb.items() if mb is not None}
    said = (
        f"memory: {facts.start_mb:.0f} MB at the start, {facts.peak_mb:.0f} MB at the peak; "
        f"growth: {growth}"
    )
    if peaks:
        said += (
            "; highest while "
            + ", ".join(f"{name} {mb:.0f}" for name, mb in peaks.items())
            + " ran"
        )
    gpu = facts.gpu
    if gpu is not None and gpu.used_mb is not None:
        torch = gpu.torch_peak_allocated_mb
        said += f"; GPU {gpu.used_mb:.0f} MB used" + (
            f", torch at most {torch:.0f}" if torch is not None else ""
        )
    return Text(said)


def energy_table(facts: EnergyFacts) -> Group:
    tags = [
        tag
        for tag in ("package", "core", "dram", "gpu")
        if any(row.joules(tag) is not None for row in facts.rows)
    ]
    table = new_table(
        "energy (the run without the idle power)",
        "of",
        "seconds",
        *(f"{tag} J" for tag in tags),
        "J a frame",
    )
    for row in facts.rows:
        joules = (number(row.joules(tag), ".2f") for tag in tags)
        table.add_row(row.tag, f"{row.duration:.2f}", *joules, number(row.joules_per_frame, ".4f"))
    each = facts.frames_per_joule
    return Group(table, *([Text(f"{each:.3g} frames a joule")] if each else []))


def python_table(facts: PythonFacts) -> Group:
    """Self times: by room and library, and by function."""
    whole = sum(facts.folded.values()) or 1.0
    owners = new_table(
        "Python: self time under cProfile, one plain loop", "room or library", "self s", "share"
    )
    for name, seconds in list(facts.folded.items())[:LARGEST_OWNERS]:
        owners.add_row(name, f"{seconds:.3f}", f"{seconds / whole:.1%}")
    functions: Table = new_table("functions", "function", "calls", "self s", "with its callees s")
    for row in facts.functions[:LONGEST_FUNCTIONS]:
        functions.add_row(row.function, str(row.calls), f"{row.self_s:.3f}", f"{row.total_s:.3f}")
    return Group(owners, functions)


def counters_text(facts: CountersFacts) -> Text:
    return Text(
        f"counters: {number(facts.ipc, '.2f')} instructions a cycle, "
        f"{number(facts.cache_miss_rate, '.1%')} cache misses, "
        f"{number(facts.instructions_per_frame, '.3g')} instructions a frame ({facts.includes})"
    )


def print_profile(console: SafeConsole, session: SavedSession, *, short: bool = False) -> None:
    """All facts of all passes. ``short``: what a person acts on, and the names of the rest."""
    there = [name for name, record in session.passes.items() if record.available and name in PARTS]
    parts = {**PARTS, "layers": longest_layers} if short else PARTS
    left = [name for name in there if short and name in DETAILS]
    shown = [parts[name](session.passes[name].facts) for name in there if name not in left]
    lines = _what_ran(session)
    lines += [f"session: {session.folder}"] if short else _lines(session)
    if short:
        others = ["the other layers"] if "layers" in there else []
        more = ", ".join(["threads and percentiles", *others, *left])
        lines.insert(0, f"not shown: {more}; -v prints them, and the report has them")
    console.print(Group(*shown, *map(Text, lines)))


def critical_path_table(facts: CriticalPathFacts) -> Table:
    title = (
        f"critical path of {counted(facts.frames, 'frame')}, "
        f"{facts.wall_s:.3f} s of steady state = 100%"
    )
    table = new_table(title, "stage", "share", "self s", "wait s", "calls", "waits because of")
    for row in facts.stages:
        causes = ", ".join(f"{cause} {seconds:.3f}" for cause, seconds in row.wait_causes.items())
        table.add_row(
            row.name,
            f"{row.share:.1%}",
            f"{row.self_s:.3f}",
            f"{row.wait_s:.3f}",
            str(row.calls),
            causes,
        )
    return table


def what_if_table(facts: WhatIfFacts) -> Group:
    """What each change gained beside the run as it is, and reasons to doubt it."""
    title = (
        f"what if, measured: {counted(facts.rounds, 'round')} of {counted(facts.frames, 'frame')}, "
        f"in turns with the run as it is ({_in_rounds(facts.fps)} FPS end to end)"
    )
    table = new_table(title, "change", "gain", "lowest .. highest", "FPS", "ms a frame")
    for row in facts.changes:
        ratio = row.fps_ratio
        told = row.helps or ratio.high < 1
        table.add_row(
            row.change,
            f"{ratio.median - 1:+.1%}" if told else "not told from none",
            f"{ratio.low - 1:+.1%} .. {ratio.high - 1:+.1%}",
            _in_rounds(row.fps),
            _in_rounds(row.frame_ms),
        )
    lines = [f"unreliable: {reason}" for reason in facts.doubts]
    lines += [f"not measured: {change}: {why}" for change, why in facts.not_measured.items()]
    return Group(table, *map(Text, lines))


def _in_rounds(values: Interval) -> str:
    return f"{values.median:.{decimals_of(values)}f}"


LONGEST_LAYERS, FEW_LAYERS = 15, 5


def longest_layers(facts: LayersFacts) -> Group:
    """The few longest layers alone."""
    shown = _longest_table(facts, FEW_LAYERS)
    return Group(shown, *([Text(f"note: {facts.flag}")] if facts.flag else []))


def layers_table(facts: LayersFacts) -> Group:
    """The longest layers, and all of them by type."""
    types = new_table("layers by type", "type", "layers", "ms", "share", "MMACs")
    for one in facts.by_type:
        sums = (str(one.layers), f"{one.ms:.3f}", f"{one.share:.1%}", f"{one.macs / 1e6:.1f}")
        types.add_row(one.type, *sums)
    notes = [*([facts.flag] if facts.flag else []), *facts.notes]
    lines = [describe_outside(facts), *(f"note: {note}" for note in notes)]
    longest = _longest_table(facts, LONGEST_LAYERS)
    return Group(longest, types, *[Text(line) for line in lines if line])


def _longest_table(facts: LayersFacts, count: int) -> Table:
    title = (
        f"layers of {facts.engine} {facts.precision}, {counted(facts.threads, 'thread')}: "
        f"{len(facts.rows)} take {facts.sum_ms:.3f} ms, a forward pass {facts.forward_ms:.3f} ms "
        f"({facts.off_by:+.1%})"
    )
    rows = sorted(facts.rows, key=lambda row: -row.ms)[:count]
    columns = (
        "type",
        "ms",
        "share",
        "MFLOPs",
        "KB",
        "GFLOP/s",
        "GB/s",
        "FLOP/B",
        "runs in",
        "of its roof",
        "bound",
    )
    longest = new_table(title, f"the {len(rows)} longest", *columns)
    for row in rows:
        cells = (number(one, ".1f") for one in (row.gflops_s, row.gbytes_s, row.intensity))
        longest.add_row(
            row.name,
            row.type,
            f"{row.ms:.3f}",
            f"{row.share:.1%}",
            f"{row.flops / 1e6:.1f}",
            number(row.bytes / 1e3 or None, ".0f"),
            *cells,
            row.precision,
            number(row.utilisation, ".0%"),
            row.bound or "-",
        )
    return longest


def least(facts: RooflineFacts) -> str:
    """Before a sum of MACs that is not the whole."""
    return "at least " if facts.uncounted else ""


def roofline_text(facts: RooflineFacts) -> Group:
    peaks, under = facts.peaks, facts.peak_under_measured
    reached = ", ".join(
        f"{name} {peak:.1f} GFLOP/s ({peaks.by.get(name, '-')})"
        for name, peak in peaks.gflops_s.items()
    )
    lines = [
        "roofline: no graph is left in the model file, so nothing was counted"
        if not (facts.macs or facts.uncounted)
        else f"roofline: {least(facts)}{facts.macs / 1e9:.3f} GMACs = "
        f"{facts.flops / 1e9:.3f} GFLOPs a picture, "
        f"{number(facts.gflops_s, '.1f')} GFLOP/s, {number(facts.utilisation, '.1%')} of the roof, "
        f"bound by {facts.bound}",
        f"peaks measured here: {reached}; memory {peaks.bandwidth_gbytes_s:.1f} GB/s",
    ]
    if facts.uncounted:
        lines.append(f"note: {describe_uncounted(facts.uncounted)}")
    if under:
        lines.append(f"note: {describe_above_roof(len(under))}")
    return Group(*map(Text, lines))


def torch_table(facts: TorchFacts) -> Group:
    """torch.profiler's operators, and the same by the shapes of their inputs."""
    slow = f"{facts.slowdown:.2f} times a pass without the profiler"
    title = f"torch's operators over {counted(facts.frames, 'steady frame')} ({slow}), ms a frame"
    tables = []
    for heading, rows in (
        (title, facts.rows),
        ("the same by shapes of their inputs", facts.by_shape),
    ):
        table = new_table(
            heading, "operator", "calls", "self ms", "share", "total ms", "on the GPU", "shapes"
        )
        for row in rows[:LONGEST_LAYERS]:
            times = (f"{row.self_ms:.3f}", f"{row.share:.1%}", f"{row.total_ms:.3f}")
            shapes = row.shapes if len(row.shapes) < 60 else row.shapes[:57] + "..."
            table.add_row(
                row.name, f"{row.calls:.1f}", *times, number(row.device_ms or None, ".3f"), shapes
            )
        tables.append(table)
    return Group(*tables, Text(f"trace: {facts.trace} in the session"))


def device_text(facts: DeviceFacts) -> Text:
    causes = ", ".join(f"{cause} {ms:.2f} ms" for cause, ms in facts.idle_ms.items())
    bound = (
        "; launch-bound: the GPU waits for the host to start its kernels"
        if facts.launch_bound
        else ""
    )
    kernels = counted(facts.kernels, "kernel")
    busy = f"busy {facts.busy_share:.1%} of {facts.window_ms:.2f} ms, {kernels}"
    return Text(f"{facts.device}: {busy}; idle: {causes or 'never'}{bound}")


def sweep_table(facts: SweepFacts) -> Group:
    rounds = f"{counted(facts.rounds, 'round')} of {counted(facts.frames, 'frame')}"
    rounds += ", median, lowest .. highest"
    table = new_table(
        f"batches and precisions ({rounds})",
        "variant",
        "inference FPS",
        "ms a batch",
        "end to end FPS",
        "memory MB",
        "agrees with fp32",
    )
    for row in facts.rows:
        if row.error is not None:
            table.add_row(row.name, row.error)
            continue
        rates = [_rate(row.fps.get(metric)) for metric in ("inference", "end_to_end")]
        table.add_row(
            row.name,
            rates[0],
            number(row.batch_ms, ".2f"),
            rates[1],
            number(row.memory_mb, ".0f"),
            number(row.matched, ".1%"),
        )
    knees = "; ".join(f"{precision}: batch {batch}" for precision, batch in facts.knees.items())
    return Group(
        table, Text(f"knee (least batch within 5% of the best inference FPS): {knees or '-'}")
    )


def _rate(rates: Interval | None) -> str:
    return "-" if rates is None else f"{rates.median:.1f} [{rates.low:.1f} .. {rates.high:.1f}]"


def loop_text(facts: LoopFacts) -> Text:
    text = f"instruments: {describe_cost(facts.instruments)}"
    return Text(text + (f"; warning: {facts.warning}" if facts.warning else ""))


PARTS: dict[str, Callable[[Any], RenderableType]] = {
    "critical_path": critical_path_table,
    "what_if": what_if_table,
    "loop": loop_text,
    "layers": layers_table,
    "roofline": roofline_text,
    "torch": torch_table,
    "device": device_text,
    "sweep": sweep_table,
    "memory": memory_text,
    "energy": energy_table,
    "python": python_table,
    "counters": counters_text,
}
DETAILS = ("loop", "torch", "device", "python", "counters")  # what the short form names only


def _what_ran(session: SavedSession) -> list[str]:
    """What the passes measured, those that say the same on one line."""
    by_text: dict[str, list[str]] = {}
    for name, record in session.passes.items():
        ran = getattr(record, "ran", None)
        if record.available and ran is not None:
            by_text.setdefault(ran.text, []).append(name)
    return [f"{', '.join(names)}: measured on {text}" for text, names in by_text.items()]


def _lines(session: SavedSession) -> list[str]:
    lines = []
    for name, record in session.passes.items():
        if not record.available:
            lines.append(f"{name}: not available: {record.reason}")
        elif record.slowdown is not None and name != "loop":
            slower = record.slowdown > 1
            took = f"took {record.slowdown:.2f} times as long" if slower else "took no longer"
            lines.append(f"{name}: the same work {took} under it")
        elif record.undisturbed is not None:
            lines.append(f"{name}: disturbs nothing: {record.undisturbed}")
    return [*lines, f"session: {session.folder}"]


def _runs_of(document: RecordingDocument) -> list[RenderableType]:
    """Which run the tables are of, where the recording has several, and what it cut off."""
    cut = document.runs[document.run - 1].open_ranges
    lines: list[RenderableType] = []
    if len(document.runs) > 1:
        table = new_table("runs of the recording", "run", "process", "program", "frames", "s")
        for at, run in enumerate(document.runs, 1):
            program = Path(run.program).name if run.program else ""
            table.add_row(str(at), str(run.process), program, str(run.frames), f"{run.seconds:.3f}")
        chosen = f"the tables are of run {document.run}; --nsys-run N shows another"
        lines += [table, Text(chosen)]
    for at, run in enumerate(document.runs, 1):
        if run.outside:
            which = f"{counted(run.ranges, 'range')} of process {run.process}"
            lie = "lie outside of every run, as those of detector(picture) do"
            lines.append(Text(f"note: {which} {lie}: --nsys-run {at}"))
    if cut:
        lines.append(
            Text(f"note: the recording ended within {counted(cut, 'range')}, left out here")
        )
    return lines


def _dependency_table(document: RecordingDocument) -> Table:
    title = "dependency analysis of the whole run, as nvprof printed it"
    table = new_table(title, "critical path", "critical path s", "waiting s", "name")
    table.columns[-1].justify = "left"
    # What is on the path, then what only waited: the longest of each.
    on_path = [row for row in document.dependency if row.critical_path_s][:MOST_NAMES]
    waiting = [row for row in document.dependency if not row.critical_path_s][:MOST_NAMES]
    for row in [*on_path, *waiting]:
        table.add_row(
            f"{row.share:.2%}", f"{row.critical_path_s:.6f}", f"{row.waiting_s:.6f}", row.name
        )
    if left := len(document.dependency) - len(on_path) - len(waiting):
        table.caption = f"{counted(left, 'shorter row')} more with --json"
    return table


def print_recorded(console: SafeConsole, document: RecordingDocument) -> None:
    """An nsys recording: stages, waits, what blocked inside the stages, the critical path."""
    parts: list[RenderableType] = _runs_of(document)
    stages = new_table(
        "stages of the recording, ms", "stage", "calls", "avg", "p50", "p90", "max", "share"
    )
    for row in document.stages:
        times = (number(time, ".2f") for time in (row.avg, row.p50, row.p90, row.max))
        stages.add_row(row.step, str(row.count), *times, f"{row.share:.1%}")
    waits = new_table("waits, s", "thread", "waited for", "s")
    for thread, each in document.waits.items():
        for what, seconds in sorted(each.items(), key=lambda item: -item[1]):
            waits.add_row(thread, what, f"{seconds:.3f}")
    parts += [stages, waits]
    if document.blocked:
        blocked = new_table("blocked in system calls, s", "stage", "call", "s")
        for stage, calls in document.blocked.items():
            for call, seconds in list(calls.items())[:3]:
                blocked.add_row(stage, call, f"{seconds:.3f}")
        parts.append(blocked)
    if document.critical_path is not None:
        parts.append(critical_path_table(document.critical_path))
        parts.append(_dependency_table(document))
    gpu = document.gpu
    busy = f"GPU busy {number(gpu.busy_share, '.1%')} of the run"
    parts.append(Text(busy if gpu.available else f"GPU: {gpu.reason}"))
    # Outside of runs there are no queues.
    if not (document.loop_is_known or document.runs[document.run - 1].outside):
        parts.append(
            Text(
                "note: the recording does not say how long the queues were; the defaults are taken"
            )
        )
    console.print(Group(*parts))
