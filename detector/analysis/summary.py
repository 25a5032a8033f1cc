"""The summary of a run: what ``--json`` prints, what summary.json holds, what every table is drawn from."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from detector.session.outcome import ExecutedLayer, RunFacts, SourceRun
from detector.session.recording import Recording, burnt_json, merged, record
from detector.session.store import SCHEMA

# ----------------------------------------------------------------------
# The ledger: where the milliseconds of a frame went, from a summary's figures.


@dataclass(frozen=True, slots=True)
class StageRow:
    """One stage. ``share`` is of its thread's wall time; times in milliseconds a frame."""

    stage: str
    thread: str
    busy_ms: float
    share: float
    p50_ms: float | None
    p90_ms: float | None
    p99_ms: float | None
    cpu_ms: float


@dataclass(frozen=True, slots=True)
class ThreadRow:
    """One thread; the four times add up to ``wall_ms``. Milliseconds a frame."""

    thread: str
    busy_ms: float
    wait_input_ms: float
    wait_output_ms: float
    other_ms: float
    wall_ms: float
    waits: tuple[str, ...]  # what it waited for, longest first


def stage_rows(summary: dict[str, Any], frames: int) -> list[StageRow]:
    rows = []
    for name, stage in summary["stages"].items():
        if not stage["calls"]:
            continue
        wall = sum(summary["threads"][thread]["wall_s"] for thread in stage["thread"].split(","))
        share = stage["busy_s"] / wall if wall else 0.0
        per_frame = 1e3 / frames
        rows.append(
            StageRow(
                name,
                stage["thread"],
                stage["busy_s"] * per_frame,
                share,
                stage["p50_ms"],
                stage["p90_ms"],
                stage["p99_ms"],
                stage["cpu_s"] * per_frame,
            )
        )
    return rows


def thread_rows(summary: dict[str, Any], frames: int) -> list[ThreadRow]:
    rows = []
    for name, thread in summary["threads"].items():
        times = [
            thread[key] * 1e3 / frames
            for key in ("busy_s", "wait_input_s", "wait_output_s", "other_s", "wall_s")
        ]
        if abs(sum(times[:4]) - times[4]) > 1e-6 * max(1.0, times[4]):
            raise AssertionError(f"the ledger of thread {name} does not add up: {times}")
        waits = sorted(thread["waits"].items(), key=lambda item: -item[1])
        busy, wait_input, wait_output, other, wall = times
        named = tuple(what for what, seconds in waits if seconds > 0)
        rows.append(ThreadRow(name, busy, wait_input, wait_output, other, wall, named))
    return rows


def seconds_text(summary: dict[str, Any]) -> str:
    """Seconds of each phase, and of the run those in the loop: the rest is opening the source and closing files."""
    walls = [thread["wall_s"] for thread in summary["threads"].values()]
    inside = f" ({max(walls):.2f} in the loop)" if walls else ""
    return ", ".join(
        f"{name} {seconds:.2f}{inside if name == 'run' else ''}"
        for name, seconds in summary["seconds"].items()
    )


# ----------------------------------------------------------------------
# What limits the run, and what it would gain if that cost nothing.
#
# A bound, not a simulation: a stage that is free cannot make the run faster than the slowest of what is left, nor than
# the CPU work of the other stages' own threads on the cores there are; opening and closing files stays; and no more is
# gained than the time in which the stage ran. What libraries burn in threads of their own is left out (only Linux tells
# whose they are; the replay counts it), so that "at most" stays true. Where the cores are nearly full, of this run's work
# or of others', it does not: the stages' times hold what was taken from them, and a stage that is free gives its share
# back.
# Measured on two cores at 90%: "9%", and 66% when inference was really free. There the sentence says "or more".

# Stages that run one after the other in the overlapped loop; the groups run side by side.
GROUPS = {
    "reading": ("read", "preprocess"),
    "inference": ("infer",),
    "writing": ("head", "nms", "annotate", "write"),
}
CPU_FULL = 0.8  # share of all cores' time above which stages slow each other down
LEAST = 0.005  # of a frame's time; what is below rounds to 0%


@dataclass(frozen=True, slots=True)
class Load:
    """One run, or one source of it, per frame in seconds."""

    period_s: float  # run seconds / frames
    apart_s: float  # of it, before the loop's threads and after them: opening the source, closing the files
    stages: dict[str, float]  # busy, infer as the time in which at least one was running
    worker_s: float  # infer's busy time over its threads: what their group takes where nothing holds it up
    stage_cpu: dict[str, float]
    process_cpu_s: float
    others_share: (
        float  # of all cores' time, what other processes took; 0 where the system does not tell
    )
    cores: int
    sync: bool

    @property
    def groups(self) -> dict[str, float]:
        """Seconds a frame of each group that runs beside the others."""
        taken = {**self.stages, "infer": self.worker_s}
        return {group: sum(taken.get(name, 0) for name in names) for group, names in GROUPS.items()}

    @property
    def cpu_share(self) -> float:
        """Of all cores' time, what this process took."""
        return self.process_cpu_s / self.cores / self.period_s


def load_of(
    stages: Mapping[str, Any],
    threads: Mapping[str, Any],
    cpu: Mapping[str, Any],
    infer_s: float,
    run_s: float,
    frames: int,
    sync: bool,
) -> Load | None:
    """``stages``, ``threads`` and ``cpu`` as in the summary. None without a frame."""
    if not frames or run_s <= 0:
        return None
    busy = {name: stage["busy_s"] / frames for name, stage in stages.items()}
    workers = len(stages["infer"]["thread"].split(","))
    loop_s = max((thread["wall_s"] for thread in threads.values()), default=run_s)
    libraries = cpu["libraries"] or {}
    others_s, seen_s = libraries.get("others_s") or 0.0, libraries.get("wall_s") or 0.0
    return Load(
        period_s=run_s / frames,
        apart_s=max(0.0, run_s - loop_s) / frames,
        stages={**busy, "infer": infer_s / frames},
        worker_s=busy["infer"] / workers,
        stage_cpu={name: stage["cpu_s"] / frames for name, stage in stages.items()},
        process_cpu_s=cpu["process_s"] / frames,
        others_share=others_s / seen_s / cpu["cores"] if seen_s else 0.0,
        cores=cpu["cores"],
        sync=sync,
    )


def without(load: Load, stage: str) -> float:
    """Seconds a frame would take at least, were ``stage`` free: never less than by the time in which it ran."""
    rest = max(0.0, load.period_s - load.stages[stage])
    if load.sync:
        return rest
    own = load.worker_s if stage == "infer" else load.stages[stage]
    groups = [seconds - own * (stage in GROUPS[group]) for group, seconds in load.groups.items()]
    cpu = sum(seconds for name, seconds in load.stage_cpu.items() if name != stage) / load.cores
    return max(rest, load.apart_s + max(cpu, *groups))


def gain(load: Load, stage: str) -> float:
    """Growth of end-to-end FPS at most, were ``stage`` free: 0.08 = 8% faster. Infinite where nothing is left."""
    rest = without(load, stage)
    return max(0.0, load.period_s / rest - 1) if rest > 0 else float("inf")


def verdict(load: Load | None) -> dict[str, Any]:
    """``bottleneck``: the stage to change first; ``sentence``; the gains that it stands on."""
    if load is None:
        return {"bottleneck": None, "sentence": "no frame went through: nothing to judge"}
    groups = load.groups
    slowest = max(groups, key=lambda group: groups[group])
    candidates = load.stages if load.sync else GROUPS[slowest]
    stage = max(candidates, key=lambda name: load.stages.get(name, 0))
    if not load.stages.get(stage):
        return {"bottleneck": None, "sentence": "the instruments were off: nothing to judge"}
    gains = {name: gain(load, name) for name in dict.fromkeys((stage, "infer"))}
    return {
        "bottleneck": stage,
        "sentence": _sentence(load, stage, gains),
        "gain_if_free": {
            name: None if value == float("inf") else round(value, 4)
            for name, value in gains.items()
        },
        "cpu_share": round(load.cpu_share, 4),
    }


def _sentence(load: Load, stage: str, gains: dict[str, float]) -> str:
    full = not load.sync and load.cpu_share + load.others_share > CPU_FULL
    share = load.stages[stage] / load.period_s
    text = f"{stage}-bound: {stage} takes {share:.0%} of the time of a frame"
    text += f"; inference could be free and you would gain {_percent(load, 'infer', gains['infer'], full)}"
    if stage != "infer":
        text += f", {stage} could be free and you would gain {_percent(load, stage, gains[stage], full)}"
    if load.sync:
        text += " (stages run in turn: without --sync they overlap)"
    elif full:
        others = load.others_share * load.cores
        beside = f", other processes take {others:.1f}" if others >= 0.05 else ""
        text += f" (the CPU is full: {load.cpu_share * load.cores:.1f} of {load.cores} cores busy{beside})"
    return text


def _percent(load: Load, stage: str, value: float, full: bool) -> str:
    if value == float("inf"):
        return "everything"
    if full and load.stages[stage] / load.period_s >= LEAST:
        return f"{value:.0%} or more"
    return "nothing" if value < LEAST else f"at most {value:.0%}"


# ----------------------------------------------------------------------
# Did it take effect? The precision that was really executed, as shares of layers, MACs and bytes.

Shares = dict[str, dict[str, float]]
"""Type -> share of layers, macs and bytes in it; the largest share of MACs first. Each adds up to 1."""

BYTES = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "int8": 1, "s8": 1, "u8": 1}
OTHER_BYTES = 4  # of a type that is not in the table: int32, mostly
FLOAT = ("fp32",)
SHOWN = 0.005  # below half a percent a type is not named in the sentence


def executed(layers: Sequence[ExecutedLayer]) -> Shares | None:
    """None where the engine told nothing. Bytes: numbers read and written, times the size of the executed type."""
    if not layers:
        return None
    sums: dict[str, list[int]] = {}
    for layer in layers:
        own = sums.setdefault(layer.precision, [0, 0, 0])
        own[0] += 1
        own[1] += layer.macs
        own[2] += layer.elements * BYTES.get(layer.precision, OTHER_BYTES)
    totals = [sum(own[at] for own in sums.values()) for at in range(3)]
    ranked = sorted(sums, key=lambda name: (-sums[name][1], -sums[name][2], name))
    return {
        name: {
            what: own / total if total else 0.0
            for what, own, total in zip(
                ("layers", "macs", "bytes"), sums[name], totals, strict=True
            )
        }
        for name in ranked
    }


def text(shares: Mapping[str, Mapping[str, float]] | None) -> str:
    """``int8 96% of MACs, fp32 4%``; by layers where nothing has MACs; empty where nothing is known."""
    if not shares:
        return ""
    what, unit = (
        ("macs", "MACs")
        if any(share["macs"] for share in shares.values())
        else ("layers", "layers")
    )
    ranked = sorted(shares.items(), key=lambda item: -item[1][what])
    shown = [(name, share[what]) for name, share in ranked if share[what] >= SHOWN]
    parts = [f"{name} {_share_text(share)}" for name, share in shown]
    return ", ".join([f"{parts[0]} of {unit}", *parts[1:]])


def effect(asked: str, shares: Mapping[str, Mapping[str, float]] | None) -> str | None:
    """A sentence where the asked precision changed nothing; None where it did, or where nobody can tell."""
    if not shares or asked in (*FLOAT, "none") or shares.get(asked, {}).get("layers", 0) > 0:
        return None
    return f"{asked} was asked for and changed nothing: executed {text(shares)}"


def _share_text(share: float) -> str:
    """Never 100% of what is not all."""
    return f"{min(share, 0.999):.1%}" if 0.995 <= share < 1 else f"{share:.0%}"


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
        "threads": {
            name: thread.as_json()
            for name, thread in sorted(total.threads.items(), key=_reader_first)
        },
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
            _source(facts, run, recording, stop_code)
            for run, recording in zip(runs, recordings, strict=True)
        ]
    return summary


def _source(
    facts: RunFacts, run: SourceRun, recording: Recording, stop_code: int | None
) -> dict[str, Any]:
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
        return {
            "path": run.spec,
            "width": None,
            "height": None,
            "fps": None,
            "frames_declared": None,
            "duration_s": None,
        }
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
    counts = {
        key: sum(getattr(run, key) for run in runs)
        for key in ("read", "written", "bad", "corrupt", "skipped")
    }
    # Read and not written: in flight when the run was cut short or failed.
    return {**counts, "dropped": counts["read"] - counts["written"]}


def _cpu(facts: RunFacts, total: Recording, runs: Sequence[SourceRun]) -> dict[str, Any]:
    """Process CPU, our own threads', and what is left: threads that libraries run for themselves."""
    process = sum(run.process_cpu_s for run in runs)
    main = sum(run.main_thread_cpu_s for run in runs)
    others = (
        sum(
            thread.cpu_ns
            for name, thread in total.threads.items()
            if name not in ("main", "writer")
        )
        / 1e9
    )
    return {
        "cores": facts.cores,
        "process_s": process,
        "our_threads_s": main + others,
        "library_threads_s": max(0.0, process - main - others),
        # In one plain loop a stage's CPU is the process's, with the library threads inside.
        "stages_include_libraries": facts.sync,
        "libraries": burnt_json(
            total.burnt
        ),  # of the steady state: first frame written to the loop's end
    }


def _verdict(facts: RunFacts, recording: Recording, runs: Sequence[SourceRun]) -> dict[str, Any]:
    stages = {name: stage.as_json() for name, stage in recording.stages.items()}
    threads = {name: thread.as_json() for name, thread in recording.threads.items()}
    run_s, frames = sum(run.run_s for run in runs), sum(run.written for run in runs)
    cpu = _cpu(facts, recording, runs)
    return verdict(
        load_of(stages, threads, cpu, recording.infer_ns / 1e9, run_s, frames, facts.sync)
    )


def _detections(facts: RunFacts, runs: Sequence[SourceRun]) -> dict[str, Any]:
    counts: dict[str, int] = {}
    for run in runs:
        for class_id, count in run.by_class.items():
            name = (
                facts.class_names[class_id] if class_id < len(facts.class_names) else str(class_id)
            )
            counts[name] = counts.get(name, 0) + count
    return {
        "total": sum(counts.values()),
        "by_class": dict(sorted(counts.items(), key=lambda item: (-item[1], item[0]))),
        "cut_by_max_det": sum(run.cut for run in runs),
    }


def _exit(runs: Sequence[SourceRun], stop_code: int | None) -> dict[str, Any]:
    """An interruption first, then the first source that failed, then damage."""
    if stop_code is not None:
        return {
            "code": stop_code,
            "reason": "interrupted: what was read so far is written and closed",
        }
    exits = [run.exit() for run in runs]
    failed = [
        (code, reason)
        for run, (code, reason) in zip(runs, exits, strict=True)
        if run.error is not None
    ]
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
    summary: dict[str, Any],
    config: dict[str, Any],
    environment: dict[str, Any],
    more: dict[str, Any],
) -> dict[str, Any]:
    """session.json: the summary with all that is needed to repeat the run."""
    return {**summary, "pid": os.getpid(), "config": config, "environment": environment, **more}
