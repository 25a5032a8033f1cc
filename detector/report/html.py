"""A session as one HTML file: works offline, asks nobody for anything, light and dark, on paper too."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from detector.analysis.activities import Activity, LoopShape, activities_of
from detector.analysis.depths import depths
from detector.analysis.ledger import stage_rows, thread_rows
from detector.analysis.steps import durations_ms, frame_times_ms
from detector.report import drawings
from detector.session.reading import SavedSession

PAGE = Path(__file__).with_name("page")
SHOWN_FRAMES = 20  # of the steady state, in the timeline
LEVERS = 3
MOST_POINTS = 600  # of a drawn series

Part = Callable[[SavedSession], str]


def page(session: SavedSession) -> bytes:
    """The whole file, UTF-8. Facts that a session lacks have no section."""
    document = session.document
    title = f"{document['model']} on {document['engine']}: {_video(document)}"
    body = "".join(part(session) for part in PARTS)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<style>{(PAGE / 'style.css').read_text(encoding='utf-8')}</style></head><body><h1>{escape(title)}</h1>{body}"
        f"<script>{(PAGE / 'script.js').read_text(encoding='utf-8')}</script></body></html>"
    ).encode()


def verdict(session: SavedSession) -> str:
    rows = session.passes.get("what_if", {}).get("predictions", [])
    levers = "".join(
        f"<li>{escape(row['change'])}<b>{row['gain']:+.0%}</b>{row['predicted_fps']:.1f} FPS end to end</li>"
        for row in rows[:LEVERS] if row["gain"] > 0
    )  # fmt: skip
    return f'<p class="verdict">{escape(session.document["verdict"]["sentence"])}</p>' + (
        f'<ul class="levers" id="levers">{levers}</ul>' if levers else ""
    )


def lab(session: SavedSession) -> str:
    document, fps = session.document, session.document["fps"]
    height, width = document["model_input"]
    row = [document["model"], document["engine"], document["precision"], f"{width}x{height}", document["batch"],
           _video_size(document), fps["inference"], fps["end_to_end"], document["frames"]["written"]]  # fmt: skip
    columns = ("model", "engine", "precision", "model input", "batch", "video size", "inference FPS", "end-to-end FPS",
               "frames")  # fmt: skip
    return "<h2>The run</h2>" + table("lab", columns, [row], sortable=False)


def ledger(session: SavedSession) -> str:
    frames = session.document["frames"]["written"]
    if not frames:
        return ""
    stages = stage_rows(session.document, frames)
    threads = thread_rows(session.document, frames)
    shapes = "".join(
        f"<figure>{drawings.bar(_thread_parts(thread, stages), 'ms a frame')}<figcaption>{escape(thread.thread)}: "
        f"{thread.wall_ms:.2f} ms of wall time a frame</figcaption></figure>" for thread in threads
    )  # fmt: skip
    columns = ("stage", "busy ms", "share", "p50 ms", "p90 ms", "p99 ms", "CPU ms", "thread")
    rows = [[s.stage, s.busy_ms, Share(s.share), s.p50_ms, s.p90_ms, s.p99_ms, s.cpu_ms, s.thread] for s in stages]
    return f"<h2>Ledger</h2>{key()}{shapes}{table('ledger', columns, rows)}"


def _thread_parts(thread: Any, stages: Sequence[Any]) -> list[tuple[str, str, float]]:
    """Its stages, what it waited and what nobody claimed: together its wall time."""
    workers = sum(1 for stage in stages if thread.thread in stage.thread.split(","))
    own = [stage for stage in stages if thread.thread in stage.thread.split(",")]
    shared = {stage.stage: len(stage.thread.split(",")) for stage in own}
    parts = [(stage.stage, stage.stage, stage.busy_ms / shared[stage.stage]) for stage in own]
    if workers and any(count > 1 for count in shared.values()):  # several workers: each has its own part of infer
        parts = [(name, name, thread.busy_ms if count > 1 else ms)
                 for (name, _, ms), count in zip(parts, shared.values(), strict=True)]  # fmt: skip
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
        (threads.index(one.thread), one.stage, f"{one.stage} {one.number}", (one.start_ns - start) / 1e6,
         (one.end_ns - start) / 1e6)
        for one in shown
    ]  # fmt: skip
    drawn = drawings.lanes(threads, slices, (end - start) / 1e6)
    return (
        f"<h2>Timeline of {SHOWN_FRAMES} steady frames</h2>{key()}<figure>{drawn}<figcaption class='screen'>Ctrl or "
        "Shift and the wheel zoom, dragging moves, a double click shows all.</figcaption></figure>"
    )


def _steady_part(activities: Sequence[Activity]) -> list[Activity]:
    frames = [one.number for one in activities if one.stage == "nms"]
    if not frames:
        return []
    first = max(0, min(max(frames) // 2, max(frames) - SHOWN_FRAMES))
    middle = [one for one in activities if one.stage == "nms" and first <= one.number < first + SHOWN_FRAMES]
    start, end = middle[0].start_ns, middle[-1].end_ns
    return [one for one in activities if one.end_ns > start and one.start_ns < end]


def _reader_first(one: Activity) -> tuple[int, str]:
    order = ("main", "reader", "worker", "writer")
    return order.index(one.thread.split("-")[0]), one.thread


def queues(session: SavedSession) -> str:
    loop = (session.document.get("loop") or [None])[0]
    activities = activities_of(session.spans)
    if not loop or not activities:
        return ""
    start, series = activities[0].start_ns, {}
    for name, (times, levels) in depths(activities, LoopShape.of(loop)).items():
        step = -(-len(times) // MOST_POINTS)
        pairs = zip(times.tolist()[::step], levels.tolist()[::step], strict=True)
        series[name] = [((when - start) / 1e9, float(level)) for when, level in pairs]
    return f"<h2>Queues</h2>{drawings.steps({k: v for k, v in series.items() if v}, 's', 'deep')}"


def latency(session: SavedSession) -> str:
    times = frame_times_ms(session.spans)
    infer = durations_ms(session.spans, "infer")
    parts = []
    for name, values in (("from reading a frame to having written it", times), ("one inference", infer)):
        if len(values) >= 5:
            ordered = sorted(values.tolist())
            marks = {f"p{p}": ordered[min(len(ordered) - 1, len(ordered) * p // 100)]
                     for p, least in ((50, 5), (90, 20), (99, 200)) if len(ordered) >= least}  # fmt: skip
            drawn = drawings.histogram(ordered, marks, "ms")
            parts.append(f"<figure>{drawn}<figcaption>{name}, {len(ordered)} samples</figcaption></figure>")
    return f"<h2>Latency</h2>{''.join(parts)}" if parts else ""


def path(session: SavedSession) -> str:
    facts = session.passes.get("critical_path", {})
    if not facts.get("available"):
        return ""
    parts = [(row["name"], row["name"], row["self_s"]) for row in facts["stages"]]
    parts.append(("wait", "hand-overs", sum(row["wait_s"] for row in facts["stages"])))
    rows = [
        [row["name"], Share(row["share"]), row["self_s"], row["wait_s"], row["calls"], ", ".join(row["wait_causes"])]
        for row in facts["stages"]
    ]
    columns = ("stage", "share", "self s", "wait s", "calls", "waits because of")
    return (
        f"<h2>Critical path</h2><figure>{drawings.bar(parts, 's')}<figcaption>{facts['wall_s']:.3f} s of steady "
        f"state ({facts['frames']} frames); start-up {facts['startup_s']:.3f} s and tear-down "
        f"{facts['teardown_s']:.3f} s are apart.</figcaption></figure>{table('path', columns, rows)}"
    )


def what_if(session: SavedSession) -> str:
    facts = session.passes.get("what_if", {})
    if not facts.get("available"):
        return ""
    proofs = {row["change"]: row for row in facts.get("proofs", [])}
    columns = ["change", "predicted FPS", "gain", *(["measured gain", "off by"] if proofs else [])]
    rows = []
    for row in facts["predictions"]:
        proof = proofs.get(row["change"], {})
        more = [Share(proof.get("measured_gain")), Share(proof.get("off_by"))] if proofs else []
        rows.append([row["change"], row["predicted_fps"], Share(row["gain"]), *more])
    note = f"The replay of the run as it was is off by {facts['replay_error']:+.1%}."
    return f"<h2>What if</h2><p>{note}</p>{table('whatif', columns, rows)}"


def layers(session: SavedSession) -> str:
    facts = session.passes.get("layers", {})
    if not facts.get("available"):
        return ""
    columns = ("layer", "type", "ms", "share", "MMACs", "MFLOPs", "KB", "GFLOP/s", "GB/s", "FLOP/byte", "precision",
               "of its roof", "bound")  # fmt: skip
    rows = [
        [row["name"], row["type"], row["ms"], Share(row["share"]), row["macs"] / 1e6, row["flops"] / 1e6,
         row["bytes"] / 1e3, row.get("gflops_s"), row.get("gbytes_s"), row.get("intensity"), row["precision"],
         Share(row.get("utilisation")), row.get("bound") or ""]
        for row in facts["rows"]
    ]  # fmt: skip
    note = f"{len(rows)} layers, {facts['sum_ms']:.3f} ms together; a forward pass took {facts['forward_ms']:.3f} ms."
    note += f" {facts['flag']}." if facts.get("flag") else ""
    field = '<input class="filter" data-table="layers" placeholder="filter layers" aria-label="filter layers">'
    return f"<h2>Layers</h2><p>{note}</p>{field}{table('layers', columns, rows)}"


def roofline(session: SavedSession) -> str:
    facts, measured = session.passes.get("roofline", {}), session.passes.get("layers", {})
    if not facts.get("available") or not measured.get("available"):
        return ""
    dots = [(row["name"], row.get("intensity") or 0.0, row.get("gflops_s") or 0.0) for row in measured["rows"]]
    used = {row["precision"] for row in measured["rows"] if row["flops"]}
    roofs = {name: peak for name, peak in facts["peaks"]["gflops_s"].items() if name in used}
    drawn = drawings.roofline(dots, roofs, facts["peaks"]["bandwidth_gbytes_s"]) if roofs else ""
    note = (
        f"{facts['macs'] / 1e9:.3f} GMACs = {facts['flops'] / 1e9:.3f} GFLOPs a picture; peaks measured here, "
        f"{facts['peaks']['bandwidth_gbytes_s']:.1f} GB/s of memory; mostly {facts['bound']}-bound, "
        f"{facts['utilisation'] or 0:.1%} of the roof over the whole forward pass."
    )
    return f"<h2>Roofline</h2><p>{escape(note)}</p><figure>{drawn}</figure>"


def memory(session: SavedSession) -> str:
    facts = session.passes.get("memory", {})
    if not facts.get("available"):
        return ""
    step = -(-len(facts["samples"]) // MOST_POINTS)
    points = [(sample["t_s"], sample["rss_mb"]) for sample in facts["samples"][::step]]
    slope = facts["slope_mb_per_1000_frames"]
    growth = facts["slope_reason"] if slope is None else f"{slope:+.2f} MB per 1000 frames in the second half"
    text = (
        f"Resident: {facts['start_mb']:.0f} MB at the start, {facts['peak_mb']:.0f} MB at the peak; growth: {growth}."
    )
    drawn = drawings.curve(points, "s", "MB")
    return f"<h2>Memory</h2><figure>{drawn}<figcaption>{escape(text)}</figcaption></figure>"


def slowest(session: SavedSession) -> str:
    facts = session.passes.get("frames", {})
    if not facts.get("available"):
        return ""
    shown = []
    for row in facts["rows"]:
        try:
            data = (session.folder / row["file"]).read_bytes()
        except OSError:
            continue
        text = f"frame {row['frame']}: {row['ms']:.1f} ms, most of it {row['stage']} ({row['stage_ms']:.1f} ms)"
        source = base64.b64encode(data).decode()
        shown.append(f'<figure><img alt="{escape(text)}" src="data:image/jpeg;base64,{source}">'
                     f"<figcaption>{escape(text)}</figcaption></figure>")  # fmt: skip
    return f"<h2>The slowest moments</h2><div class='frames'>{''.join(shown)}</div>" if shown else ""


def others(session: SavedSession) -> str:
    """Passes that could not run say why; those that could, by how much they slowed the run down."""
    rows = [
        [
            name,
            Share(facts["slowdown"] - 1) if "slowdown" in facts else "",
            facts.get("seconds"),
            facts.get("reason") or "",
        ]
        for name, facts in session.passes.items()
    ]
    columns = ("pass", "slower than the plain run", "seconds", "not available because")
    return f"<h2>Passes</h2>{table('passes', columns, rows)}" if rows else ""


def machine(session: SavedSession) -> str:
    environment = session.document.get("environment", {})
    cpu = environment.get("cpu", {})
    libraries = ", ".join(f"{name} {version}" for name, version in environment.get("libraries", {}).items())
    command = " ".join(str(word) for word in session.document.get("command", []))
    lines = [f"{cpu.get('model', 'unknown CPU')}, {cpu.get('cores', '?')} cores", libraries, *session.document["notes"]]
    return (
        "<h2>How it was measured</h2>" + "".join(f"<p>{escape(line)}</p>" for line in lines if line)
        + f"<pre>{escape(command)}</pre><p>What each number means and how it is taken: docs/measurement.md and "
        "docs/reading.md of detect-video.</p>"
    )  # fmt: skip


PARTS: tuple[Part, ...] = (
    verdict, lab, ledger, timeline, queues, latency, path, what_if, layers, roofline, memory, slowest, others, machine,
)  # fmt: skip


class Share(float):
    """A number that is shown as a percentage; None stays empty."""

    def __new__(cls, value: float | None) -> Share:
        return super().__new__(cls, float("nan") if value is None else value)


def key() -> str:
    names = ("read", "preprocess", "infer", "head", "nms", "annotate", "write", "wait", "other")
    return '<div class="key">' + "".join(f'<span><i class="{name}"></i>{name}</span>' for name in names) + "</div>"


def table(name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], sortable: bool = True) -> str:
    heads = "".join(f"<th scope='col'><button>{escape(c)}</button></th>" if sortable else f"<th>{escape(c)}</th>"
                    for c in columns)  # fmt: skip
    body = "".join("<tr>" + "".join(_cell(value) for value in row) + "</tr>" for row in rows)
    kind = ' class="sortable"' if sortable else ""
    inside = f"<thead><tr>{heads}</tr></thead><tbody>{body}</tbody>"
    return f'<div class="scroll"><table id="{name}"{kind}>{inside}</table></div>'


def _cell(value: Any) -> str:
    """Numbers carry their full value for sorting, and for whoever checks the page against the session."""
    if value is None or (isinstance(value, float) and value != value):
        return "<td></td>"
    if isinstance(value, Share):
        return f'<td data-value="{float(value)!r}">{value:.1%}</td>'
    if isinstance(value, (int, float)):
        shown = f"{value:.3f}" if isinstance(value, float) else str(value)
        return f'<td data-value="{value!r}">{shown}</td>'
    return f'<td class="text">{escape(str(value))}</td>'


def _video(document: dict[str, Any]) -> str:
    return Path(document["video"]["path"]).name if "video" in document else f"{len(document['sources'])} sources"


def _video_size(document: dict[str, Any]) -> str:
    video = document.get("video") or document["sources"][0]["video"]
    return f"{video['width']}x{video['height']}"
