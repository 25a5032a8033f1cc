"""Parts of the report on the whole run: rates, time per stage and thread, and the machine."""

from __future__ import annotations

import shlex
from html import escape

from detector.core.analysis.ledger import ThreadRow, thread_rows, unbooked_cpu_s
from detector.core.analysis.statistics import list_statistics
from detector.core.analysis.summary import seconds_text
from detector.core.analysis.tables import ledger_table, rates_table, threads_table
from detector.core.errors.text import counted
from detector.core.session.document import SessionDocument
from detector.core.tables import Column, Rounded, Table
from detector.lab.analysis.loop.activities import times_of_thread
from detector.lab.analysis.noise import decimals_of_rate
from detector.lab.report.html import drawings
from detector.lab.report.html.drawings import details, figure, stage_key, table, text
from detector.lab.report.part import How, Part, list_stages
from detector.lab.session.read import SavedSession


def rates(session: SavedSession) -> str:
    def rounded(rate: float) -> Rounded:
        return Rounded(rate, decimals_of_rate(session, rate))

    return table(rates_table(session.document, rounded), sortable=False)


STATISTICS = (
    Column("title", "statistic", value=lambda one: one[0].title),
    Column("value", value=lambda one: one[1]),
    Column("unit", value=lambda one: one[0].unit if one[0].unit != "1" else ""),
    Column("name", "in summary.json", value=lambda one: one[0].name),
)


def statistics(session: SavedSession) -> str:
    rows = [(one, one.of(session.document)) for one in list_statistics()]
    known = Table("statistics", STATISTICS, [row for row in rows if row[1] is not None])
    return details(f"all {len(known.rows)} statistics of summary.json", table(known))


def ledger(session: SavedSession) -> str:
    document, frames = session.document, session.document.frames.written
    if not frames:
        return ""
    threads = thread_rows(document, frames)
    shapes = "".join(
        figure(
            drawings.bar(_thread_parts(thread, session), "ms per frame") + _draw_states(thread),
            f"{thread.thread}: {thread.wall_ms:.2f} ms of wall time per frame",
        )
        for thread in threads
    )
    if any(thread.busy is not None for thread in threads):
        shapes = drawings.colour_key(STATES) + shapes
    note = (
        "<p>Milliseconds per frame; a thread's parts add up to its wall time. "
        f"{_outside_threads(document, frames)}</p>"
    )
    tables = table(ledger_table(document, frames)), table(threads_table(document, frames))
    return stage_key([*list_stages(session), "wait", "other"]) + shapes + note + "".join(tables)


def _outside_threads(document: SessionDocument, frames: int) -> str:
    """Describe times that no bar shows: the CPU time of library threads, and seconds by phase."""
    libraries, unbooked = (
        seconds * 1e3 / frames
        for seconds in (document.cpu.library_threads_s, unbooked_cpu_s(document))
    )
    used = (
        "The stages include the CPU time of library threads."
        if document.cpu.stages_include_libraries
        else f'Library threads used <b data-value="{libraries!r}">{libraries:.2f}</b> ms of '
        f"CPU per frame, {unbooked:.2f} of it outside the stages."
    )
    return f"{used} Seconds: {escape(seconds_text(document))}."


def _thread_parts(thread: ThreadRow, session: SavedSession) -> list[tuple[str, str, float]]:
    """Return (CSS class, label, ms) for each part of a thread's wall time. Long runs record only
    some calls, so the stages are scaled to add up to the busy time."""
    own = times_of_thread(session.spans, thread.thread)
    scale = thread.busy_ms / (sum(own.values()) or 1.0)
    parts = [(stage, stage, time * scale) for stage, time in own.items() if time]
    return [
        *parts,
        ("wait", "waits for input", thread.wait_input_ms),
        ("wait", "waits for output", thread.wait_output_ms),
        ("no-core", "no core between stages", thread.preempted_ms),
        ("other", "other", thread.other_ms),
    ]


# The states of a thread, drawn below its stages: (CSS class, name)
STATES = (
    ("on-cpu", "running on a core"),
    ("no-core", "no core: taken by this program"),
    ("foreign", "no core: taken by other programs"),
    ("blocked", "blocked in a stage"),
    ("wait", "waiting for input or output"),
    ("other", "waiting for a lock, between stages"),
)


def _draw_states(thread: ThreadRow) -> str:
    busy, waiting, other = thread.busy, thread.waiting, thread.other
    ready, foreign = thread.ready_ms, thread.foreign_ms or 0.0
    if busy is None or waiting is None or other is None or ready is None:
        return ""
    values = (
        busy.on_cpu_ms + waiting.on_cpu_ms + other.on_cpu_ms,
        ready - foreign,
        foreign,
        busy.blocked_ms,
        waiting.blocked_ms,
        other.blocked_ms,
    )
    named = [(kind, name, value) for (kind, name), value in zip(STATES, values, strict=True)]
    return drawings.bar(named, "ms per frame")


def machine(session: SavedSession) -> str:
    document, environment = session.document, session.document.environment
    cpu = environment.cpu
    command = shlex.join(document.command)
    lines = [
        f"{cpu.model or 'unknown CPU'}, "
        f"{'? cores' if cpu.cores is None else counted(cpu.cores, 'core')}",
        f"network on {document.device} {document.device_name or ''}" if document.device else "",
        f"GPU driver {environment.gpu_driver}" if environment.gpu_driver else "",
        environment.platform,
        f"detect-video {environment.detect_video} {environment.commit or ''}, "
        f"Python {environment.python or '?'}"
        if environment.detect_video
        else "",
        ", ".join(f"{name} {version}" for name, version in environment.libraries.items()),
        document.engine_reason,
        *document.notes,
    ]
    ran = f"<p>The exact command:</p><pre>{escape(command)}</pre>" if command else ""
    return "".join(text(line) for line in lines if line) + ran


FPS = How(
    "fps",
    "FPS",
    "End-to-end FPS: frames written divided by the seconds of the run, from opening the "
    "source to closing the files. Inference FPS: frames divided by the seconds when at "
    "least one infer was running.",
    "FPS",
    "docs/measurement.md",
)
LEDGER = How(
    "ledger",
    "time per stage and thread",
    'Each thread reads the clock around every stage call and every wait; "other" is the rest of '
    "its wall time, without the part in which it had no core. For stretches longer than 50 us, "
    "the thread's CPU clock and the kernel's run queue show how long it was on a core and how long "
    'it had none; "no core, others" is the part in which another program held the core. "all CPU" '
    "includes the threads of libraries.",
    "Time per stage and thread",
)
PARTS = (
    Part("run", "The run", 10, rates, how=FPS),
    Part("ledger", "Time per stage and thread", 20, ledger, how=LEDGER),
    Part("statistics", "Statistics", 185, statistics),
    Part("machine", "Machine and command", 190, machine),
)
