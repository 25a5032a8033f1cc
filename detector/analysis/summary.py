"""The summary of a run: what ``--json`` prints, what summary.json holds, what every table is drawn from."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from detector.analysis.execution import effect, executed, text
from detector.analysis.verdict import load_of, verdict
from detector.session.outcome import RunFacts, SourceRun
from detector.session.recording import Recording, burnt_json, merged, record
from detector.session.store import SCHEMA


def summarize(
    facts: RunFacts, runs: Sequence[SourceRun], seconds: dict[str, float], stop_code: int | None
) -> dict[str, Any]:
    """One JSON document. With several sources ``video``, ``frames``, ``verdict``, ``outputs``, ``detections`` and
    ``exit`` of each stand in ``sources``; outside stand the totals."""
    recordings = [record(run.timeline) for run in runs]
    total = merged(recordings)
    frames = _frames(runs)
    shares = executed(facts.layers)
    summary: dict[str, Any] = {
        "schema": SCHEMA,
        "model": facts.model,
        "family": facts.family,
        "engine": facts.engine,
        "engine_reason": facts.engine_reason,
        "precision": facts.precision,
        "precision_executed": shares,
        "precision_text": text(shares),
        "precision_effect": effect(facts.precision, shares),
        "batch": facts.batch,
        "model_input": list(facts.model_input),
        "engine_threads": facts.threads,
        "concurrency": facts.concurrency,
        "sync": facts.sync,
        "random_weights": facts.random_weights,
        **({"video": _video(runs[0])} if len(runs) == 1 else {}),
        "frames": frames,
        "fps": {
            "end_to_end": _rate(frames["written"], sum(run.run_s for run in runs)),
            "inference": _rate(frames["written"], total.infer_ns / 1e9),
            "device": _device_rate(runs),
        },
        "seconds": seconds,
        "stages": {name: stage.as_json() for name, stage in total.stages.items()},
        "threads": {name: thread.as_json() for name, thread in sorted(total.threads.items(), key=_reader_first)},
        "cpu": _cpu(facts, total, runs),
        "verdict": _verdict(facts, total, runs),
        "detections": _detections(facts, runs),
        "exit": _exit(runs, stop_code),
        "notes": list(dict.fromkeys([*facts.notes, *(note for run in runs for note in run.notes)])),
    }
    if len(runs) == 1:
        summary["outputs"] = runs[0].outputs
        summary["partial_outputs"] = runs[0].partial
    else:
        summary["sources"] = [
            _source(facts, run, recording, stop_code) for run, recording in zip(runs, recordings, strict=True)
        ]
    return summary


def _source(facts: RunFacts, run: SourceRun, recording: Recording, stop_code: int | None) -> dict[str, Any]:
    return {
        "video": _video(run),
        "frames": _frames([run]),
        "fps": {
            "end_to_end": _rate(run.written, run.run_s),
            "inference": _rate(run.written, recording.infer_ns / 1e9),
            "device": _device_rate([run]),
        },
        "verdict": _verdict(facts, recording, [run]),
        "outputs": run.outputs,
        "partial_outputs": run.partial,
        "detections": _detections(facts, [run]),
        "exit": _exit([run], stop_code),
    }


def _video(run: SourceRun) -> dict[str, Any]:
    info = run.info
    if info is None:
        return {"path": run.spec, "width": None, "height": None, "fps": None, "frames_declared": None,
                "duration_s": None}  # fmt: skip
    return {
        "path": run.spec,
        "width": info.width,
        "height": info.height,
        "fps": float(info.fps),
        "frames_declared": info.frames_declared,
        "duration_s": info.duration_s,
        "kind": info.kind,
        "codec": info.codec,
        "rotation": info.rotation,
        "decoder": run.decoder,
    }


def _frames(runs: Sequence[SourceRun]) -> dict[str, int]:
    counts = {key: sum(getattr(run, key) for run in runs) for key in ("read", "written", "bad", "corrupt", "skipped")}
    # Read and not written: in flight when the run was cut short or failed.
    return {**counts, "dropped": counts["read"] - counts["written"]}


def _cpu(facts: RunFacts, total: Recording, runs: Sequence[SourceRun]) -> dict[str, Any]:
    """Process CPU, our own threads', and what is left: threads that libraries run for themselves."""
    process = sum(run.process_cpu_s for run in runs)
    main = sum(run.main_thread_cpu_s for run in runs)
    others = sum(thread.cpu_ns for name, thread in total.threads.items() if name not in ("main", "writer")) / 1e9
    return {
        "cores": facts.cores,
        "process_s": process,
        "our_threads_s": main + others,
        "library_threads_s": max(0.0, process - main - others),
        # In one plain loop a stage's CPU is the process's, with the library threads inside.
        "stages_include_libraries": facts.sync,
        "libraries": burnt_json(total.burnt),  # of the steady state: first frame written to the loop's end
    }


def _verdict(facts: RunFacts, recording: Recording, runs: Sequence[SourceRun]) -> dict[str, Any]:
    stages = {name: stage.as_json() for name, stage in recording.stages.items()}
    threads = {name: thread.as_json() for name, thread in recording.threads.items()}
    run_s, frames = sum(run.run_s for run in runs), sum(run.written for run in runs)
    cpu = _cpu(facts, recording, runs)
    return verdict(load_of(stages, threads, cpu, recording.infer_ns / 1e9, run_s, frames, facts.sync))


def _detections(facts: RunFacts, runs: Sequence[SourceRun]) -> dict[str, Any]:
    counts: dict[str, int] = {}
    for run in runs:
        for class_id, count in run.by_class.items():
            name = facts.class_names[class_id] if class_id < len(facts.class_names) else str(class_id)
            counts[name] = counts.get(name, 0) + count
    return {
        "total": sum(counts.values()),
        "by_class": dict(sorted(counts.items(), key=lambda item: (-item[1], item[0]))),
        "cut_by_max_det": sum(run.cut for run in runs),
    }


def _exit(runs: Sequence[SourceRun], stop_code: int | None) -> dict[str, Any]:
    """An interruption first, then the first source that failed, then damage."""
    if stop_code is not None:
        return {"code": stop_code, "reason": "interrupted: what was read so far is written and closed"}
    exits = [run.exit() for run in runs]
    failed = [(code, reason) for run, (code, reason) in zip(runs, exits, strict=True) if run.error is not None]
    code, reason = failed[0] if failed else max(exits, key=lambda pair: pair[0])
    return {"code": code, "reason": reason}


def _reader_first(item: tuple[str, Any]) -> tuple[int, str]:
    order = ("main", "reader", "worker", "writer")
    return order.index(item[0].split("-")[0]), item[0]


def _rate(count: int, seconds: float) -> float | None:
    return count / seconds if count and seconds > 0 else None


def _device_rate(runs: Sequence[SourceRun]) -> float | None:
    """Frames a second of the device's own time. Batches that overlap on it count in full, each."""
    told = [run for run in runs if run.device_ms is not None]
    return _rate(sum(run.written for run in told), sum(run.device_ms or 0.0 for run in told) / 1e3)


def session_document(
    summary: dict[str, Any], config: dict[str, Any], environment: dict[str, Any], more: dict[str, Any]
) -> dict[str, Any]:
    """session.json: the summary with all that is needed to repeat the run."""
    return {**summary, "pid": os.getpid(), "config": config, "environment": environment, **more}
