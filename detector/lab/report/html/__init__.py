"""A session as one HTML file. It works offline, loads nothing, and reads well in light and dark and
on paper."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from detector.core import wings
from detector.core.analysis.summary import (
    StageRow,
    ThreadRow,
    seconds_text,
    stage_rows,
    thread_rows,
)
from detector.core.errors.text import counted, printable_page
from detector.core.session.document import SessionDocument
from detector.core.timeline.spans import STAGES
from detector.core.wings import Rounded, Share
from detector.lab.analysis.loop.activities import (
    Activity,
    activities_of,
    durations_ms,
    frame_times_ms,
    percentiles,
)
from detector.lab.analysis.noise import decimals_of, decimals_of_rate
from detector.lab.analysis.profile import describe_cost
from detector.lab.report.html import drawings
from detector.lab.report.html.drawings import curve, figure, key, section, table, zoom_buttons
from detector.lab.report.html.first import first_screen, levers
from detector.lab.report.html.loop import queues, slowest
from detector.lab.report.html.parts import (
    counters,
    device,
    energy,
    layers,
    measured_on,
    memory,
    python,
    roofline,
    sweep,
    text,
    torch,
)
from detector.lab.session.passes import (
    Change,
    CriticalPathFacts,
    LoopFacts,
    PassRecord,
    WhatIfFacts,
)
from detector.lab.session.read import SavedSession

PAGE = Path(__file__).with_name("page")
SHOWN_FRAMES = 20  # of the steady state, in the timeline

Part = Callable[[SavedSession], str]


def page(session: SavedSession) -> bytes:
    """The whole file in UTF-8. Facts that a session lacks have no section."""
    document = session.document
    title = escape(f"{document.model} on {document.engine}: {_video(document)}")
    body = "".join(part(session) for part in PARTS)
    style = (PAGE / "style.css").read_text(encoding="utf-8")
    script = (PAGE / "script.js").read_text(encoding="utf-8")
    whole = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="icon" href="data:,"><style>{style}</style></head>'
        f"<body><h1>{title}</h1>{body}<script>{script}</script></body></html>\n"
    )
    return printable_page(whole).encode()


def lab(session: SavedSession) -> str:
    document, fps = session.document, session.document.fps
    height, width = document.model_input
    row = [
        document.model,
        document.engine,
        document.precision,
        f"{width}x{height}",
        document.batch,
        _video_size(document),
        _rate(session, fps.inference),
        _rate(session, fps.end_to_end),
        document.frames.written,
    ]
    columns = [
        "model",
        "engine",
        "precision",
        "model input",
        "batch",
        "video size",
        "inference FPS",
        "end-to-end FPS",
        "frames",
    ]
    if fps.device is not None:
        row.insert(-3, _rate(session, fps.device))
        columns.insert(-3, "device FPS")
    return section("run", "The run", table("lab", columns, [row], sortable=False), how="fps")


def _rate(session: SavedSession, rate: float | None) -> Rounded | None:
    return None if rate is None else Rounded(rate, decimals_of_rate(session, rate))


def ledger(session: SavedSession) -> str:
    frames = session.document.frames.written
    if not frames:
        return ""
    stages = stage_rows(session.document, frames)
    threads = thread_rows(session.document, frames)
    shapes = "".join(
        figure(
            drawings.bar(_thread_parts(thread, stages), "ms a frame"),
            f"{thread.thread}: {thread.wall_ms:.2f} ms of wall time a frame",
        )
        for thread in threads
    )
    columns = ("stage", "busy ms", "share", "p50 ms", "p90 ms", "p99 ms", "CPU ms", "thread")
    rows = [
        [s.stage, s.busy_ms, Share(s.share), s.p50_ms, s.p90_ms, s.p99_ms, s.cpu_ms, s.thread]
        for s in stages
    ]
    if (beside := session.document.decoding) and beside.calls:
        busy, cpu = (seconds * 1e3 / frames for seconds in (beside.busy_s, beside.cpu_s))
        of = f"cameras' own: {beside.threads}"
        rows.append(["decoding", busy, None, None, None, None, cpu, of])
    sides = (
        "thread",
        "busy ms",
        "waits for input",
        "waits for output",
        "other",
        "= wall ms",
        "waited for",
    )
    adding = [
        [
            t.thread,
            t.busy_ms,
            t.wait_input_ms,
            t.wait_output_ms,
            t.other_ms,
            t.wall_ms,
            ", ".join(t.waits),
        ]
        for t in threads
    ]
    outside = _outside_threads(session.document, frames)
    note = f"<p>Milliseconds a frame; a thread's parts add up to its wall time. {outside}</p>"
    return section(
        "ledger",
        "Ledger",
        key(),
        shapes,
        note,
        table("ledger", columns, rows),
        table("threads", sides, adding),
        how="ledger",
    )


def _outside_threads(document: SessionDocument, frames: int) -> str:
    """Time that is in no thread's bar: CPU of libraries' threads, and the seconds of each phase."""
    libraries = document.cpu.library_threads_s * 1e3 / frames
    used = (
        "CPU time of libraries' threads is in the stages."
        if document.cpu.stages_include_libraries
        else "Libraries' own threads used "
        f'<b data-value="{libraries!r}">{libraries:.2f}</b> ms of CPU a frame.'
    )
    return f"{used} Seconds: {escape(seconds_text(document))}."


def _thread_parts(thread: ThreadRow, stages: Sequence[StageRow]) -> list[tuple[str, str, float]]:
    """(CSS class, label, ms) of its stages, its waits and the rest: together its wall time."""
    parts = []
    for stage in stages:
        threads = stage.thread.split(",")
        if thread.thread in threads:
            # A stage of several threads is infer, which is all that its workers do.
            ms = thread.busy_ms if len(threads) > 1 else stage.busy_ms
            parts.append((stage.stage, stage.stage, ms))
    return [
        *parts,
        ("wait", "waits for input", thread.wait_input_ms),
        ("wait", "waits for output", thread.wait_output_ms),
        ("other", "other", thread.other_ms),
    ]


def timeline(session: SavedSession) -> str:
    activities = activities_of(session.spans)
    shown = _steady_part(activities)
    if not shown:
        return ""
    start, end = min(one.start_ns for one in shown), max(one.end_ns for one in shown)
    threads = list(dict.fromkeys(one.thread for one in sorted(activities, key=_reader_first)))
    slices = [
        (
            threads.index(one.thread),
            one.stage,
            f"{one.stage} {one.number}",
            (one.start_ns - start) / 1e6,
            (one.end_ns - start) / 1e6,
        )
        for one in shown
    ]
    drawn = drawings.lanes(threads, slices, (end - start) / 1e6)
    note = "Gaps are waits. Ctrl or Shift and the wheel zoom too, dragging moves."
    return section(
        "timeline",
        f"Timeline of {_numbers(shown)}",
        key(STAGES),
        figure(drawn),
        zoom_buttons(note),
        how="spans",
    )


def _numbers(shown: Sequence[Activity]) -> str:
    frames = len({one.number for one in shown if one.stage == "nms"})
    return (
        f"{SHOWN_FRAMES} steady frames"
        if frames >= SHOWN_FRAMES
        else f"the whole run: {counted(frames, 'frame')}"
    )


def _steady_part(activities: Sequence[Activity]) -> list[Activity]:
    frames = [one.number for one in activities if one.stage == "nms"]
    if len(frames) < SHOWN_FRAMES:  # there is no steady part: the whole run, if it has a frame
        return list(activities) if frames else []
    first = max(0, min(max(frames) // 2, max(frames) - SHOWN_FRAMES))
    middle = [
        one
        for one in activities
        if one.stage == "nms" and first <= one.number < first + SHOWN_FRAMES
    ]
    if not middle:  # of frames whose numbers leave a gap in the middle
        return []
    start, end = middle[0].start_ns, middle[-1].end_ns
    return [one for one in activities if one.end_ns > start and one.start_ns < end]


def _reader_first(one: Activity) -> tuple[int, str]:
    order = ("main", "reader", "worker", "writer")
    return order.index(one.thread.split("-")[0]), one.thread


def latency(session: SavedSession) -> str:
    times = frame_times_ms(session.spans)
    infer = durations_ms(session.spans, "infer")
    parts = []
    for name, values in (
        ("from reading a frame to having written it", times),
        ("one inference", infer),
    ):
        if len(values) >= 5:
            ordered = sorted(values.tolist())
            marks = {
                name: value for name, value in percentiles(values).items() if value is not None
            }
            drawn = drawings.histogram(ordered, marks, "ms")
            beyond = sum(
                1
                for value in ordered
                if value > ordered[min(len(ordered) - 1, int(len(ordered) * 0.995))]
            )
            note = (
                f"; the last bin holds {beyond} that took longer, up to {ordered[-1]:.1f} ms"
                if beyond
                else ""
            )
            parts.append(figure(drawn, f"{name}, {counted(len(ordered), 'sample')}{note}"))
    return section("latency", "Latency", *parts, how="percentiles") if parts else ""


def path(session: SavedSession) -> str:
    facts = session.facts(CriticalPathFacts)
    if facts is None:
        return ""
    parts = [(row.name, row.name, row.self_s) for row in facts.stages]
    parts.append(("wait", "hand-overs", sum(row.wait_s for row in facts.stages)))
    rows = [
        [row.name, Share(row.share), row.self_s, row.wait_s, row.calls, ", ".join(row.wait_causes)]
        for row in facts.stages
    ]
    columns = ("stage", "share", "self s", "wait s", "calls", "waits because of")
    note = (
        f"{facts.wall_s:.2f} s of steady state ({counted(facts.frames, 'frame')}), without "
        f"{facts.startup_s:.2f} s of start-up and {facts.teardown_s:.2f} s of tear-down."
    )
    names = (*(kind for kind, *_ in parts),)
    shown = key([name for name in (*STAGES, "wait") if name in names])
    return section(
        "path",
        "Critical path",
        shown,
        figure(drawings.bar(parts, "s"), note),
        table("path", columns, rows),
        how="path",
    )


def what_if(session: SavedSession) -> str:
    facts = session.facts(WhatIfFacts)
    if facts is None:
        return ""
    now = f'<b data-value="{facts.fps.median!r}">{facts.fps.median:.{decimals_of(facts.fps)}f}</b>'
    note = (
        f"<p>Each change ran in turns with the run as it is ({now} FPS end to end), "
        f"{counted(facts.rounds, 'round')} of {counted(facts.frames, 'frame')}. The gain is the "
        "median of the rounds; a dash: it was not faster in every round, so that it is not told "
        "from none.</p>" + measured_on(session, "what_if")
    )
    if facts.doubts:
        note += f'<p class="warning">Unreliable: {escape("; ".join(facts.doubts))}.</p>'
    if facts.not_measured:
        reasons = "; ".join(f"{change}: {why}" for change, why in facts.not_measured.items())
        note += f"<p>Not measured: {escape(reasons)}.</p>"
    columns = ("change", "gain", "lowest", "highest", "FPS", "ms a frame", "instead of it")
    drawn = table("whatif", columns, [_change_cells(row) for row in facts.changes])
    return section("what-if", "What if", levers(facts), note, drawn, how="whatif")


def _change_cells(row: Change) -> list[Any]:
    """A change that was slower in every round has its loss as a gain below nothing."""
    ratio, told = row.fps_ratio, row.helps or row.fps_ratio.high < 1
    return [
        row.change,
        Share(ratio.median - 1) if told else None,
        Share(ratio.low - 1),
        Share(ratio.high - 1),
        Rounded(row.fps.median, decimals_of(row.fps)),
        Rounded(row.frame_ms.median, decimals_of(row.frame_ms)),
        row.how,
    ]


def others(session: SavedSession) -> str:
    """By how much each pass slowed the run down, or why it could not run."""
    rows = [
        [
            name,
            "" if record.ran is None else record.ran.text,
            _slower(record),
            record.seconds,
            _went(record),
        ]
        for name, record in session.passes.items()
    ]
    columns = ("pass", "measured on", "slower under it", "seconds", "how it went")
    note = ""
    if (loop := session.facts(LoopFacts)) is not None:
        note = f"<p>The instruments of the plain run: {describe_cost(loop.instruments)}.</p>"
    return (
        section("passes", "Passes", note, table("others", columns, rows), how="passes")
        if rows
        else ""
    )


def _slower(record: PassRecord) -> Share | str | None:
    """A pass that took less time than the plain run was measured within the noise."""
    if record.slowdown is None:
        return None
    return Share(record.slowdown - 1) if record.slowdown > 1 else "not measurable"


def _went(record: PassRecord) -> str:
    if record.reason:
        return f"not available: {record.reason}"
    if isinstance(record.facts, LoopFacts) and record.facts.warning:
        return record.facts.warning
    return "ran" if record.undisturbed is None else f"ran, {record.undisturbed}"


def machine(session: SavedSession) -> str:
    document, environment = session.document, session.document.environment
    cpu = environment.cpu
    command = shlex.join(document.command)
    lines = [
        f"{cpu.model or 'unknown CPU'}, "
        f"{'? cores' if cpu.cores is None else counted(cpu.cores, 'core')}",
        f"GPU driver {environment.gpu_driver}" if environment.gpu_driver else "",
        environment.platform,
        f"detect-video {environment.detect_video}, Python {environment.python or '?'}"
        if environment.detect_video
        else "",
        ", ".join(f"{name} {version}" for name, version in environment.libraries.items()),
        document.engine_reason,
        *document.notes,
    ]
    shown = "".join(f"<p>{escape(line)}</p>" for line in lines if line)
    ran = f"<p>The exact command:</p><pre>{escape(command)}</pre>" if command else ""
    return section("machine", "The machine and the command", shown, ran)


def _video(document: SessionDocument) -> str:
    first, *others = document.each
    return f"{1 + len(others)} sources" if others else Path(first.video.path).name


def _video_size(document: SessionDocument) -> str:
    video = document.each[0].video
    return f"{video.width}x{video.height}"


# ----------------------------------------------------------------------
# How each number of the report was taken, in a line, and where the documentation says more.

# id, what, how it is taken, (file, heading) of the documentation
LINES = (
    (
        "fps",
        "FPS",
        "End-to-end FPS: frames written over the seconds of the run, from opening the source to "
        "closing the files. Inference FPS: frames over the seconds in which at least one infer "
        "was running.",
        ("docs/measurement.md", "FPS"),
    ),
    (
        "ledger",
        "ledger",
        "Each thread reads the clock around every stage call and every wait; the rest of its wall "
        "time is other. CPU is the thread's own CPU clock.",
        ("docs/reading.md", "Ledger and threads"),
    ),
    (
        "spans",
        "timeline, queues",
        "From the recorded start and end of each call; nothing is sampled. A queue's depth "
        "follows from the calls before and after it.",
        ("docs/measurement.md", "Spans, waits, other"),
    ),
    (
        "percentiles",
        "latency, slowest moments",
        "Of single calls. A percentile without enough samples is left out.",
        ("docs/measurement.md", "Percentiles"),
    ),
    (
        "path",
        "critical path",
        "The chain of calls and hand-overs that the wall time of the steady state consists of: "
        "program order, data, bounded queues, buffers given back.",
        ("docs/reading.md", "Critical path"),
    ),
    (
        "whatif",
        "what if",
        "A stand-in hands out what a stage gave for the first pictures, or the loop is another. "
        "Each such run stands between two runs as they are; their ratio is the gain, from the "
        "lowest round to the highest. Nothing is predicted.",
        ("docs/reading.md", "What if"),
    ),
    (
        "layers",
        "layers",
        "Medians of a separate run under the engine's own profiler. They tell the layers' shares, "
        "but no rates of the whole run. FLOPs are 2 x MACs, counted on the graph.",
        ("docs/reading.md", "Instruments and passes"),
    ),
    (
        "roofline",
        "roofline",
        "Peaks were measured on this computer with the engine's number of threads. Above 100% the "
        "peak was measured too low; the value is not clamped.",
        ("docs/reading.md", "Instruments and passes"),
    ),
    (
        "torch",
        "torch's operators",
        "Five steady frames under torch.profiler, after three warm-up frames.",
        ("docs/reading.md", "torch and device"),
    ),
    (
        "device",
        "host and device",
        "Kernels and operators of ten batches as torch.profiler (CUPTI) saw them; busy is "
        "the union of all kernels and copies, idle the rest of the window.",
        ("docs/reading.md", "torch and device"),
    ),
    (
        "sweep",
        "batches and precisions",
        "Runs without a profiler, in turn; medians over three rounds.",
        ("docs/reading.md", "Sweep"),
    ),
    (
        "memory",
        "memory",
        "Resident set of the process, sampled in a separate run.",
        ("docs/reading.md", "Memory"),
    ),
    (
        "energy",
        "energy",
        "The processor's and the GPU's own counters, read every 100 ms, less the idle power. "
        "Nothing is estimated.",
        ("docs/reading.md", "Energy"),
    ),
    (
        "ages",
        "age of a picture",
        "From its arrival to its detections (the end of nms), and to each output. By the camera's "
        "clock: from the moment that the camera states (RTCP).",
        ("docs/live.md", "Policies and frame age"),
    ),
    ("python", "Python", "One plain loop under cProfile.", ("docs/reading.md", "Python")),
    (
        "passes",
        "passes",
        "Each pass that slows the run down is a separate run, compared with the plain one. It has "
        "that one's engine, precision, threads, requests, batch and input, unless it says so.",
        ("docs/reading.md", "Instruments and passes"),
    ),
)


def of_wings(session: SavedSession) -> str:
    """What the wings add, drawn as the rest."""
    return "".join(map(_drawn, wings.sections(session.document)))


def _drawn(part: wings.Section) -> str:
    inside = []
    for piece in part.pieces:
        if isinstance(piece, wings.Rows):
            drawn = table(piece.name, piece.columns, piece.rows, most=piece.most, rest=piece.rest)
        elif isinstance(piece, wings.Curve):
            drawn = figure(curve(piece.points, piece.x_unit, piece.y_unit), piece.caption)
        else:
            drawn = text(piece)
        inside.append(drawn)
    return section(part.name, part.title, *inside, how=part.how)


def how(session: SavedSession) -> str:
    del session  # the same in every report
    rows = "".join(
        f'<dt id="how-{name}">{escape(what)}</dt><dd>{escape(text)} '
        f"<cite>{escape(file)}, {escape(heading)}</cite></dd>"
        for name, what, text, (file, heading) in LINES
    )
    return section("how", "How each number was taken", f"<dl>{rows}</dl>")


PARTS: tuple[Part, ...] = (
    first_screen,
    of_wings,
    lab,
    ledger,
    timeline,
    queues,
    latency,
    path,
    what_if,
    layers,
    roofline,
    torch,
    device,
    sweep,
    memory,
    energy,
    counters,
    python,
    slowest,
    others,
    machine,
    how,
)
