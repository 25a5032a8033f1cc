"""The openvino engine compared with OpenVINO's benchmark_app: alone from memory, and in the
loop."""

from __future__ import annotations

import json
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from measuring.clips import clip
from measuring.limit import NETWORKS
from measuring.rounds import (
    QUICK_FRAMES,
    ROOT,
    STREET,
    Row,
    against,
    detect_video,
    interleave,
    markdown,
    quick_option,
    ratios,
    run,
    say_machine,
    spread,
)

AIM = 0.95
# openvino's telemetry sends an event during the import. openvino falls back to a stub if telemetry
# cannot be imported.
START = (
    "import sys; sys.modules['openvino_telemetry'] = None; "
    "from openvino.tools.benchmark.main import main; main()"
)
HINTS = {"fp32": "f32", "bf16": "bf16", "int8": "f32"}  # int8 is in the graph
THEIRS, HINTED, MEMORY, LOOP = (
    "benchmark_app",
    "benchmark_app, its own choice",
    "ours, from memory",
    "ours, in the loop",
)


def read_fps(output: str) -> float:
    """Return the throughput. Raises ClickException if there is none."""
    found = re.search(r"Throughput:\s*([\d.]+) FPS", output)
    if found is None:
        raise click.ClickException(f"benchmark_app reported no throughput: {output[-300:]}")
    return float(found[1])


def others_share(summary: Mapping[str, Any]) -> float:
    """Return the share of the process's CPU time used by stages other than inference, 0 to 1.

    Library threads are counted in the steady state, so their rate is extrapolated to the whole run.
    """
    cpu = summary["cpu"]
    libraries = cpu["libraries"]
    if libraries is None:
        raise click.ClickException("this system does not report the CPU time of library threads")
    of_infer = libraries["stages"].get("infer", {"cpu_s": 0.0})["cpu_s"]
    steady = of_infer / libraries["process_s"] * cpu["process_s"]
    return max(0.0, 1 - (summary["stages"]["infer"]["cpu_s"] + steady) / cpu["process_s"])


HEAD = (
    "network, precision",
    "requests x threads",
    "benchmark_app, FPS",
    "its own choice, FPS",
    "from memory, ratio",
    f">= {AIM:g}",
    "loop, ratio",
    "share of other stages",
    "loop / its aim",
    f">= {AIM:g} x (1 - share)",
)


def cells(found: Mapping[str, Sequence[Row]]) -> list[str]:
    """Return the cells of one network and precision. The last one is 1 if the loop reaches its
    aim."""
    memory = ratios(found[MEMORY], found[THEIRS], "fps")
    loop = ratios(found[LOOP], found[THEIRS], "fps")
    shares = [row["others"] for row in found[LOOP]]
    of_aim = [one / (AIM * (1 - share)) for one, share in zip(loop, shares, strict=True)]
    return [
        spread([row["fps"] for row in found[THEIRS]]),
        spread([row["fps"] for row in found[HINTED]]),
        spread(memory),
        against(memory, AIM),
        spread(loop),
        spread(shares),
        spread(of_aim),
        against(of_aim, 1.0),
    ]


@click.command("benchmark_app")
@click.option("--network", "networks", multiple=True, type=click.Choice(list(NETWORKS)))
@click.option("--precisions", default="fp32,int8", show_default=True)
@click.option("--requests", type=int, help="Requests in flight.  [default: the cores]")
@click.option("--threads", default=1, show_default=True, help="Per request.")
@click.option("--frames", default=300, show_default=True, help="Frames of runs with the loop.")
@click.option("--seconds", default=10, show_default=True, help="Per run from memory.")
@click.option("--rounds", default=5, show_default=True)
@quick_option
def benchmark_app(
    networks: tuple[str, ...],
    precisions: str,
    requests: int | None,
    threads: int,
    frames: int,
    seconds: int,
    rounds: int,
    quick: bool,
) -> None:
    """Compare the openvino engine with benchmark_app, on the graph that the engine compiles.

    benchmark_app has as many requests, streams and threads, and the same precision. Ours serves
    pictures from memory, and then the whole loop with --no-video, whose other stages use the same
    cores.
    """
    say_machine(quick)
    frames, rounds, seconds = (QUICK_FRAMES, 1, 2) if quick else (frames, rounds, seconds)
    at_once = requests or max(1, len(os.sched_getaffinity(0)) // threads)
    table = []
    for name in networks or NETWORKS:
        missing = [one for one in NETWORKS[name] if isinstance(one, Path) and not one.is_file()]
        if missing:
            click.echo(f"{name}: skipped: {missing[0]} does not exist")
            continue
        for precision in precisions.split(","):
            with tempfile.TemporaryDirectory() as folder:
                graph = Path(folder, "graph.onnx")
                own = bench("export-graph", name, precision, graph)
                click.echo(f"\n{name} {precision}: {json.loads(own.stdout)['note']}")
                shape = (at_once, threads)
                variants = _variants(name, precision, graph, shape, frames, seconds)
                found = interleave(variants, rounds, warm_up=0 if quick else 1)
            table.append([f"{name} {precision}", f"{at_once}x{threads}", *cells(found)])
    click.echo("\n" + markdown(HEAD, table))


def bench(*arguments: Any) -> Any:
    return run([sys.executable, ROOT / "scripts/bench", *map(str, arguments)])


def _variants(
    name: str, precision: str, graph: Path, shape: tuple[int, int], frames: int, seconds: int
) -> dict[str, Callable[[], Row]]:
    at_once, threads = shape
    fixed = ("-hint", "none", "-nstreams", at_once, "-nthreads", at_once * threads)

    def theirs(*options: Any) -> Row:
        asked = ("-m", graph, "-d", "CPU", "-t", seconds, "-api", "async")
        command = [sys.executable, "-c", START, *asked, "-infer_precision", HINTS[precision]]
        return {"fps": read_fps(run([*map(str, command), *map(str, options)]).stdout)}

    def memory() -> Row:
        turn = bench("memory-turn", name, precision, at_once, threads, seconds)
        row: Row = json.loads(turn.stdout)
        return row

    def loop() -> Row:
        chosen = ("--engine", "openvino", "--precision", precision)
        sizes = ("--concurrency", at_once, "--threads", threads, "--frames", frames)
        calibrated = calibration(name, precision)
        summary = detect_video(
            clip(720, frames), *NETWORKS[name], *chosen, *sizes, *calibrated, "--no-video"
        )
        return {"fps": summary["fps"]["end_to_end"], "others": others_share(summary)}

    return {
        THEIRS: partial(theirs, *fixed, "-nireq", at_once),
        MEMORY: memory,
        HINTED: partial(theirs, "-hint", "throughput"),
        LOOP: loop,
    }


def calibration(name: str, precision: str) -> tuple[Any, ...]:
    """Return options; the default model needs none."""
    if precision != "int8" or name.startswith("street"):
        return ()
    return ("--calibrate", STREET, "--calibrate-frames", 16)


# ----------------------------------------------------------------------
# In their own processes


def _opened(name: str, precision: str) -> tuple[Any, Any]:
    """Open the network, and return it with the configuration of its precision."""
    from detector.core.config.schema import CalibrationConfig, Config, RuntimeConfig
    from detector.core.models import ModelRequest, open_network

    options = list(NETWORKS[name])
    given = dict(zip(options[::2], options[1::2], strict=True))
    size = given.get("--size")
    network = open_network(
        ModelRequest(
            str(given["--model"]),
            random_seed=given.get("--random-weights"),
            size=tuple(map(int, reversed(size.split("x")))) if size else None,
        )
    )
    wants = calibration(name, precision)
    asked = CalibrationConfig(calibrate=str(STREET), calibrate_frames=16)
    config = Config(
        runtime=RuntimeConfig(precision=precision),
        calibration=asked if wants else CalibrationConfig(),
    )
    return network, config


@click.command("export-graph", hidden=True)
@click.argument("name")
@click.argument("precision")
@click.argument("target", type=click.Path(path_type=Path))
def export_graph(name: str, precision: str, target: Path) -> None:
    """Write the ONNX graph that the openvino engine compiles."""
    import onnx

    from detector.core.engines.openvino.pairs import remove_needless_pairs
    from detector.core.run.prepare import prepare_network

    network, config = _opened(name, precision)
    ready = prepare_network(network, "openvino", config, lambda at_once: at_once)
    graph = ready.network.graph
    onnx.save(
        remove_needless_pairs(graph) if "int8-u8" in ready.network.precision else graph, target
    )
    note = f"{len(graph.graph.node)} nodes, input {ready.network.input_shape} u8"
    click.echo(json.dumps({"note": note}))


@click.command("memory-turn", hidden=True)
@click.argument("name")
@click.argument("precision")
@click.argument("requests", type=int)
@click.argument("threads", type=int)
@click.argument("seconds", type=float)
def memory_turn(name: str, precision: str, requests: int, threads: int, seconds: float) -> None:
    """Run the turn of ``scripts/bench alone`` for ``seconds``."""
    from detector.core import engines
    from detector.core.run.prepare import prepare_network
    from detector.core.run.quantize.frames import read_frames
    from measuring.alone import turn

    network, config = _opened(name, precision)
    shaped = replace(config.runtime, concurrency=requests, threads=threads)
    ready = prepare_network(
        network, "openvino", replace(config, runtime=shaped), lambda at_once: at_once
    )
    picture = read_frames(str(STREET), network.input, 1).seen[:1]
    with engines.open("openvino", ready.network, ready.options) as engine:
        runs = max(requests, round(500 / turn(engine, picture, 10 * requests)))  # of half a second
        turns, until = [], time.perf_counter() + seconds
        while not turns or time.perf_counter() < until:
            turns.append(turn(engine, picture, runs))
    click.echo(json.dumps({"fps": 1e3 / statistics.fmean(turns)}))
