"""Compute the summary of a run, and how much of the network ran in each numeric type."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from msgspec import UNSET

from detector.core.analysis.verdict import Choices, frame_times, has_encodings, judge
from detector.core.errors.text import counted
from detector.core.session.document import (
    CpuTime,
    DetectionCounts,
    FrameCounts,
    LiveMemory,
    PrecisionShare,
    Rates,
    SceneHistory,
    SessionDocument,
    SourceSummary,
    StreamSummary,
    Summary,
    Verdict,
    Video,
)
from detector.core.session.outcome import ExecutedLayer, RunSettings, SourceRun, exit_of
from detector.core.session.recording import TimelineSums, library_threads, merge_recordings, record
from detector.core.types import Background


def summarize(
    facts: RunSettings, runs: Sequence[SourceRun], seconds: dict[str, float], stop_code: int | None
) -> Summary:
    """Summarize a run. ``seconds``: time of each phase. ``stop_code``: exit code after a signal."""
    recordings = [record(run.timeline) for run in runs]
    total = merge_recordings(recordings)
    shares = executed(facts.layers)
    notes = list(dict.fromkeys([*facts.notes, *(note for run in runs for note in run.notes)]))
    summary = Summary(
        model=facts.model,
        family=facts.family,
        engine=facts.engine,
        engine_reason=facts.engine_reason,
        device=facts.device or UNSET,
        device_name=facts.device_name or UNSET,
        precision=facts.precision,
        precision_executed=shares,
        precision_text=text(shares),
        precision_effect=effect(facts.precision, shares),
        batch=facts.batch,
        model_input=facts.model_input,
        tiles=facts.tiles,
        engine_threads=facts.threads,
        concurrency=facts.concurrency,
        sync=facts.sync,
        random_weights=facts.random_weights,
        frames=_frames(runs),
        fps=_rates(runs, total),
        seconds=seconds,
        stages={name: stage.figures(total.burnt, name) for name, stage in total.stages.items()},
        threads={
            name: thread.figures(total.burnt)
            for name, thread in sorted(total.threads.items(), key=_sort_key)
        },
        cpu=_cpu(facts, total, runs),
        verdict=_verdict(facts, total, runs),
        detections=_detections(facts, runs),
        exit=exit_of(runs, stop_code),
        notes=[str(note) for note in notes],
        background=[at for at, note in enumerate(notes) if isinstance(note, Background)],
        input_shapes=facts.input_shapes or UNSET,
    )
    if len(runs) == 1:
        run = runs[0]
        return replace(
            summary,
            video=_video(run),
            outputs=run.outputs,
            partial_outputs=run.partial,
            zones=run.zones or UNSET,
        )
    sources = [
        _source(facts, run, recording, stop_code)
        for run, recording in zip(runs, recordings, strict=True)
    ]
    return replace(summary, sources=sources)


def input_text(summary: Summary) -> str:
    """Return the network's input: ``640x384`` (width first), or ``5 shapes`` with --rect."""
    height, width = summary.model_input
    if summary.input_shapes is UNSET or summary.input_shapes.shapes == 1:
        return f"{width}x{height}"
    return counted(summary.input_shapes.shapes, "shape")


def session_document(summary: Summary, scenes: list[SceneHistory], **facts: Any) -> SessionDocument:
    """Return the content of session.json: the summary, and ``facts`` needed to repeat the run."""
    values = {field.name: getattr(summary, field.name) for field in fields(summary)}
    return SessionDocument(**values, pid=os.getpid(), scenes=scenes or UNSET, **facts)


def _source(
    facts: RunSettings, run: SourceRun, recording: TimelineSums, stop_code: int | None
) -> SourceSummary:
    return SourceSummary(
        video=_video(run),
        frames=_frames([run]),
        fps=_rates([run], recording),
        verdict=_verdict(facts, recording, [run]),
        outputs=run.outputs,
        partial_outputs=run.partial,
        detections=_detections(facts, [run]),
        exit=exit_of([run], stop_code),
        zones=run.zones or UNSET,
    )


def _video(run: SourceRun) -> Video:
    info = run.info
    if info is None:
        return Video(
            path=run.spec, width=None, height=None, fps=None, frames_declared=None, duration_s=None
        )
    return Video(
        path=run.spec,
        width=info.width,
        height=info.height,
        fps=float(info.fps) or None,
        frames_declared=info.frames_declared,
        duration_s=info.duration_s,
        kind=info.kind,
        codec=info.codec,
        rotation=info.rotation,
        decoder=run.decoder,
        pixels=run.pixels or UNSET,
    )


def _frames(runs: Sequence[SourceRun]) -> FrameCounts:
    read, written = sum(run.read for run in runs), sum(run.written for run in runs)
    return FrameCounts(
        read=read,
        written=written,
        bad=sum(run.counts.bad for run in runs),
        corrupt=sum(run.counts.corrupt for run in runs),
        skipped=sum(run.counts.skipped for run in runs),
        dropped=read - written,
        reused=sum(run.reused for run in runs),
        coasted=sum(run.coasted for run in runs),
    )


def _rates(runs: Sequence[SourceRun], recording: TimelineSums) -> Rates:
    written = sum(run.written for run in runs)
    inferred = sum(run.inferred for run in runs)
    # Batches may overlap on the device; their times are added up nevertheless.
    timed = [run for run in runs if run.device_ms is not None]
    device_s = sum(run.device_ms or 0.0 for run in timed) / 1e3
    return Rates(
        end_to_end=_rate(
            written, sum(run.run_s if run.live_s is None else run.live_s for run in runs)
        ),
        inference=_rate(inferred, recording.infer_ns / 1e9),
        device=_rate(sum(run.inferred for run in timed), device_s),
    )


def _rate(count: int, seconds: float) -> float | None:
    return count / seconds if count and seconds > 0 else None


def _cpu(facts: RunSettings, total: TimelineSums, runs: Sequence[SourceRun]) -> CpuTime:
    process = sum(run.process_cpu_s for run in runs)
    main = sum(run.main_thread_cpu_s for run in runs)
    main_names = ("main", "writer")
    others = sum(t.cpu_ns for name, t in total.threads.items() if name not in main_names) / 1e9
    return CpuTime(
        cores=facts.cores,
        process_s=process,
        our_threads_s=main + others,
        library_threads_s=max(0.0, process - main - others),
        stages_include_libraries=facts.sync,
        libraries=library_threads(total.burnt),
    )


def _verdict(facts: RunSettings, recording: TimelineSums, runs: Sequence[SourceRun]) -> Verdict:
    times = frame_times(
        {name: stage.figures(recording.burnt, name) for name, stage in recording.stages.items()},
        {name: thread.figures(recording.burnt) for name, thread in recording.threads.items()},
        _cpu(facts, recording, runs),
        recording.infer_ns / 1e9,
        sum(run.run_s for run in runs),
        sum(run.written for run in runs),
        facts.sync,
    )
    outputs = {kind for run in runs for kind in run.outputs}
    choices = Choices(
        outputs=outputs,
        encoding=facts.encoding,
        encodings=all(has_encodings(run.outputs.get("video", "")) for run in runs),
        input=facts.model_input,
        smaller_input=facts.smaller_input,
        between=facts.between,
    )
    return judge(times, choices)


def _detections(facts: RunSettings, runs: Sequence[SourceRun]) -> DetectionCounts:
    counts: dict[str, int] = {}
    for run in runs:
        for class_id, count in run.by_class.items():
            has_name = class_id < len(facts.class_names)
            name = facts.class_names[class_id] if has_name else str(class_id)
            counts[name] = counts.get(name, 0) + count
    of_pictures = all(run.info is not None and run.info.kind == "pictures" for run in runs)
    return DetectionCounts(
        total=sum(counts.values()),
        by_class=dict(sorted(counts.items(), key=lambda item: (-item[1], item[0]))),
        cut_by_max_det=sum(run.cut for run in runs),
        empty=sum(run.empty for run in runs) if of_pictures else UNSET,
    )


def _sort_key(item: tuple[str, Any]) -> tuple[int, str]:
    order = ("main", "reader", "worker", "writer")
    return order.index(item[0].split("-")[0]), item[0]


def streams_of(summary: Summary) -> list[StreamSummary]:
    return summary.streams if isinstance(summary.streams, list) else []


def live_memory_text(memory: LiveMemory) -> str:
    return (
        f"{memory.start_mb:.0f} MB at the start, {memory.end_mb:.0f} MB at the end, "
        f"{memory.peak_mb:.0f} MB at the peak"
    )


def seconds_text(summary: Summary) -> str:
    """Return a line with each phase's seconds and their sum, including the interpreter's start."""
    walls = [thread.wall_s for thread in summary.threads.values()]
    inside = f" (loop {max(walls):.2f})" if walls else ""
    phases = ", ".join(
        f"{name} {seconds:.2f}{inside if name == 'run' else ''}"
        for name, seconds in summary.seconds.items()
    )
    return f"{phases}; total {sum(summary.seconds.values()):.2f}, including the interpreter's start"


# The precision that was executed, as shares of layers, MACs and bytes.

Shares = dict[str, PrecisionShare]
"""Numeric type -> its shares of layers, of MACs and of bytes. Each of the three adds up to 1 over
all types. The type with the largest share of MACs is first."""

BYTES = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "int8": 1, "s8": 1, "u8": 1}
OTHER_BYTES = 4  # for types missing in the table, mostly int32
MIN_SHARE = 0.005  # types with a smaller share are not shown


def executed(layers: Sequence[ExecutedLayer]) -> Shares | None:
    """Return the share of each precision; None without layers."""
    if not layers:
        return None
    sums: dict[str, list[int]] = {}
    for layer in layers:
        counts = sums.setdefault(layer.precision, [0, 0, 0])
        counts[0] += 1
        counts[1] += layer.macs
        counts[2] += layer.elements * BYTES.get(layer.precision, OTHER_BYTES)
    totals = [sum(column) for column in zip(*sums.values(), strict=True)]
    ranked = sorted(sums, key=lambda name: (-sums[name][1], -sums[name][2], name))
    shares: Shares = {}
    for name in ranked:
        parts = zip(sums[name], totals, strict=True)
        count, macs, size = (part / total if total else 0.0 for part, total in parts)
        shares[name] = {"layers": count, "macs": macs, "bytes": size}
    return shares


def text(shares: Mapping[str, PrecisionShare] | None) -> str:
    """Return ``int8 96% of MACs, fp32 4%`` (of layers if no layer has MACs); empty without data."""
    if not shares:
        return ""
    if any(share["macs"] for share in shares.values()):
        unit, unit_shares = "MACs", {name: share["macs"] for name, share in shares.items()}
    else:
        unit, unit_shares = "layers", {name: share["layers"] for name, share in shares.items()}
    ranked = sorted(unit_shares.items(), key=lambda item: -item[1])
    first, *others = [f"{name} {_percent(share)}" for name, share in ranked if share >= MIN_SHARE]
    return ", ".join([f"{first} of {unit}", *others])


def effect(asked: str, shares: Mapping[str, PrecisionShare] | None) -> str | None:
    """Return a warning if no layer ran in the precision ``asked``; always None for "fp32"."""
    if not shares or asked in ("fp32", "none"):
        return None
    if asked in shares and shares[asked]["layers"] > 0:
        return None
    return f"{asked} was requested but had no effect: executed as {text(shares)}"


def _percent(share: float) -> str:
    """Format a share as a percentage. A share below 1 is never rounded up to 100%."""
    return f"{min(share, 0.999):.1%}" if 0.995 <= share < 1 else f"{share:.0%}"
