"""The loop on few cores, pinned, and on many, by its replay: where it stops growing, and why."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from measuring.clips import GIVEN_CLIP, clip
from measuring.rounds import (
    OURS,
    QUICK_FRAMES,
    ROOT,
    Row,
    detect_video,
    interleave,
    markdown,
    quick_option,
    rates,
    ratios,
    run,
    say_machine,
    spread,
)

if TYPE_CHECKING:
    from detector.lab.analysis.loop.replay import Call, Load

WITHIN = 0.05  # of its own run: what the replay may be off by
GROWS = 0.05  # of the FPS, for twice the cores: less is no growth
MANY = (4, 8, 16, 32)
JOBS: dict[str, dict[str, Any]] = {  # options of the configuration
    "video": {},
    "overlay": {"save": "overlay"},
    "no video": {"no_video": True},
}


# ----------------------------------------------------------------------
# The replay with other cores


def on_cores(load: Load, cores: int) -> Load:
    """The same work on so many cores, with as many requests as a run would open there.

    A request keeps its threads and a call its length; what an encoder or a decoder would do with
    more threads of its own is not known to the replay.
    """
    from detector.core.engines.base import MAX_STREAMS

    shape = load.shape
    at_once = shape.concurrency if shape.sync else min(MAX_STREAMS, cores)
    more = at_once - shape.concurrency
    grown = replace(
        shape,
        concurrency=at_once,
        requests=shape.requests + more,
        images=shape.images + more * shape.batch,
        results=shape.results + more,
    )
    return replace(load, cores=cores, shape=grown)


@dataclass(frozen=True, slots=True)
class Replay:
    """``busiest``: the thread of the loop that works longest, and its share of the time;
    ``stages``: its stages, longest first, with their shares. ``if_free``: stage -> growth of FPS if
    it took no time, the largest first."""

    fps: float
    busiest: str
    share: float
    stages: Mapping[str, float]
    if_free: Mapping[str, float] = field(default_factory=dict)


def look_at(load: Load, calls: Sequence[Call]) -> Replay:
    """What a replay says. Workers share their calls, so each counts with its own."""
    from detector.lab.analysis.loop.replay import wall

    seconds = wall(calls)
    threads: dict[str, Counter[str]] = {}
    for call in calls:
        threads.setdefault(call.thread, Counter())[call.stage] += call.end - call.start
    busiest = max(threads, key=lambda name: sum(threads[name].values()))
    parts = {stage: spent / seconds for stage, spent in threads[busiest].most_common()}
    return Replay(load.frames / seconds, busiest, sum(parts.values()), parts)


def gains(load: Load, fps: float) -> dict[str, float]:
    """What stage to change first with this many cores: each is replayed as if it took no time."""
    from detector.lab.analysis.loop.replay import replay, wall

    freed = {
        stage: load.frames / wall(replay(load.scaled({stage: 0.0}))) / fps - 1
        for stage in load.seconds
        if sum(load.seconds[stage])
    }
    return dict(sorted(freed.items(), key=lambda one: -one[1]))


def stops_at(fps: Mapping[int, float]) -> int:
    """The number of cores from which more of them bring less than ``GROWS``."""
    cores = sorted(fps)
    for fewer, more in itertools.pairwise(cores):
        if all(fps[other] < fps[fewer] * (1 + GROWS) for other in cores if other >= more):
            return fewer
    return cores[-1]


def sentence(found: Mapping[int, Replay]) -> str:
    last = stops_at({cores: one.fps for cores, one in found.items()})
    at = found[last]
    stages = ", ".join(f"{name} {share:.0%}" for name, share in list(at.stages.items())[:3])
    grows = "it still grows there" if last == max(found) else "more cores bring less than 5%"
    return (
        f"from {last} cores on: {at.fps:.0f} FPS, {grows}; the busiest thread is {at.busiest}, "
        f"{at.share:.0%} of the time ({stages}); free, {_freed(at.if_free)}"
    )


def _freed(gains: Mapping[str, float]) -> str:
    return ", ".join(f"{name} would bring {gain:+.0%}" for name, gain in list(gains.items())[:2])


# ----------------------------------------------------------------------
# The command


@click.command()
@click.option("--clip", "path", type=GIVEN_CLIP, help="[default: 720p]")
@click.option("--engine", default="ort", show_default=True)
@click.option("--precision", default="fp32", show_default=True)
@click.option("--frames", default=300, show_default=True)
@click.option("--rounds", default=5, show_default=True)
@quick_option
def cores(
    path: Path | None, engine: str, precision: str, frames: int, rounds: int, quick: bool
) -> None:
    """The loop pinned to 1, 2 ... cores by taskset, and replayed on 4 to 32.

    A replay counts where it meets its own run within 5%, which is said for each job.
    """
    say_machine(quick)
    frames, rounds = (QUICK_FRAMES, 1) if quick else (frames, rounds)
    if shutil.which("taskset") is None:
        raise click.ClickException("taskset is not installed: apt install util-linux")
    own = sorted(os.sched_getaffinity(0))
    source = path or clip(720, frames)
    shared = {"engine": engine, "precision": precision, "frames": frames}
    click.echo(f"\n{source.name}, {engine} {precision}, {frames} frames")
    variants = {
        f"{name}, {count} cores": partial(_pinned, own[:count], source, shared | more)
        for name, more in JOBS.items()
        for count in _counts(len(own))
    }
    found = interleave(variants, rounds, warm_up=0 if quick else 1)
    click.echo("\n" + markdown(*_pinned_table(found, _counts(len(own)))))
    rows = []
    for name, more in JOBS.items():
        bench = [sys.executable, ROOT / "scripts/bench", "cores-replay", source]
        told = run([*bench, json.dumps(shared | more)])
        rows += _replay_rows(name, json.loads(told.stdout))
    click.echo("\n" + markdown(REPLAY_HEAD, [row[:-1] for row in rows]))
    click.echo("\n" + "\n".join(dict.fromkeys(row[-1] for row in rows)))


def _counts(most: int) -> list[int]:
    """1, 2, 4 ... and as many as the machine has."""
    return sorted({*(1 << power for power in range(6) if 1 << power <= most), most})


def _pinned(places: Sequence[int], source: Path, options: Mapping[str, Any]) -> Row:
    program = ["taskset", "-c", ",".join(map(str, places)), *OURS]
    return rates(detect_video(source, *flags(options), program=program))


def flags(options: Mapping[str, Any]) -> list[str]:
    """Options of the configuration as the command line takes them."""
    given = []
    for name, value in options.items():
        given += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return given


def _pinned_table(
    found: Mapping[str, Sequence[Row]], counts: Sequence[int]
) -> tuple[list[str], list[list[str]]]:
    lines = []
    for name in JOBS:
        one = found[f"{name}, {counts[0]} cores"]
        for count in counts:
            rows = found[f"{name}, {count} cores"]
            fps, cpu = ([row[key] for row in rows] for key in ("fps", "cpu_ms"))
            lines.append([name, str(count), *map(spread, (fps, ratios(rows, one, "fps"), cpu))])
    head = ["job", "cores", "end-to-end FPS", f"times {counts[0]} core", "CPU, ms a frame"]
    return head, lines


REPLAY_HEAD = (
    "job",
    "replay against its run",
    *(f"{count} cores, FPS (busiest thread)" for count in MANY),
)


def _replay_rows(name: str, told: Mapping[str, Any]) -> list[list[str]]:
    """The last cell is a sentence for below the table."""
    error = told["error"]
    trust = "within 5%" if abs(error) <= WITHIN else "not within 5%: do not trust this row"
    found = {int(cores): Replay(**one) for cores, one in told["replays"].items()}
    cells = [f"{found[count].fps:.0f} ({found[count].busiest})" for count in MANY]
    return [[name, f"{error:+.1%} ({trust})", *cells, f"{name}: {sentence(found)}"]]


@click.command("cores-replay", hidden=True)
@click.argument("source", type=click.Path(path_type=Path))
@click.argument("options")
def cores_replay(source: Path, options: str) -> None:
    """One run and one plain loop in this process, and what the replay makes of them."""
    from detector.core.config.levels import resolve_config
    from detector.lab.analysis.loop.replay import replay
    from detector.lab.analysis.loop.what_if import alone_in, replay_session
    from detector.lab.profile.base import pin_choices, run_again

    config = resolve_config(None, json.loads(options))
    plain = run_again(str(source), config)
    pinned = pin_choices(config, plain.document)
    sync = replace(pinned, loop=replace(pinned.loop, sync=True))
    alone = alone_in(run_again(str(source), sync).document)
    played = replay_session(plain, alone=alone)
    if played is None:
        raise click.ClickException("the run recorded no spans")
    found = {}
    for count in (1, 2, *MANY):
        load = on_cores(played.load, count)
        one = look_at(load, replay(load))
        found[count] = {
            "fps": one.fps,
            "busiest": one.busiest,
            "share": one.share,
            "stages": dict(one.stages),
            "if_free": gains(load, one.fps),
        }
    click.echo(json.dumps({"error": played.error, "replays": found}))
