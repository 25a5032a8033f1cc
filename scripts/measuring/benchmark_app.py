"""Compare OpenVINO's benchmark_app with our openvino engine: with its inference of pictures in
memory, and with our whole loop."""

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
# Hide openvino_telemetry, which sends an event during the import; openvino then uses a stub.
START = (
    "import sys; sys.modules['openvino_telemetry'] = None; "
    "from openvino.tools.benchmark.main import main; main()"
)
HINTS = {"fp32": "f32", "bf16": "bf16", "int8": "f32"}  # an int8 graph itself says what is int8
THEIRS, HINTED, MEMORY, LOOP = (
    "benchmark_app",
    "benchmark_app, its own settings",
    "ours, from memory",
    "ours, in the loop",
)


def read_fps(output: str) -> float:
    """Return the throughput in benchmark_app's output. Raises ClickException if it has none."""
    match = re.search(r"Throughput:\s*([\d.]+) FPS", output)
    if match is None:
        raise click.ClickException(f"benchmark_app reported no throughput: {output[-300:]}")
    return float(match[1])


def others_share(summary: Mapping[str, Any]) -> float:
    """Return the share (0 to 1) of the process's CPU time that was not spent on inference.

    Library threads' times cover only the steady state, so we extrapolate them to the whole run.
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
    "benchmark_app, its own settings, FPS",
    "ours from memory / benchmark_app",
    f">= {AIM:g}",
    "our loop / benchmark_app",
    "CPU share of other stages",
    "our loop / its target FPS",
    f">= {AIM:g} x (1 - share)",
)


def cells(rows: Mapping[str, Sequence[Row]]) -> list[str]:
    """Return the cells of one network and precision, from the third column on."""
    memory = ratios(rows[MEMORY], rows[THEIRS], "fps")
    loop = ratios(rows[LOOP], rows[THEIRS], "fps")
    shares = [row["others"] for row in rows[LOOP]]
    shares_of_aim = [ratio / (AIM * (1 - share)) for ratio, share in zip(loop, shares, strict=True)]
    return [
        spread([row["fps"] for row in rows[THEIRS]]),
        spread([row["fps"] for row in rows[HINTED]]),
        spread(memory),
        against(memory, AIM),
        spread(loop),
        spread(shares),
        spread(shares_of_aim),
        against(shares_of_aim, 1.0),
    ]


@click.command("benchmark_app")
@click.option("--network", "networks", multiple=True, type=click.Choice(list(NETWORKS)))
@click.option("--precisions", default="fp32,int8")
@click.option("--requests", type=int, help="Requests in flight.  [default: cores / threads]")
@click.option("--threads", default=1, help="Threads per request.")
@click.option("--frames", default=300, help="Frames of each run of the loop.")
@click.option("--seconds", default=10, help="Length of each run on pictures in memory.")
@click.option("--rounds", default=5)
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

    benchmark_app gets the same requests, threads and precision. Our engine first infers pictures in
    memory, and then runs in the whole loop (--no-video), whose other stages use the same cores.
    """
    say_machine(quick)
    frames, rounds, seconds = (QUICK_FRAMES, 1, 2) if quick else (frames, rounds, seconds)
    concurrency = requests or max(1, len(os.sched_getaffinity(0)) // threads)
    table = []
    for name in networks or NETWORKS:
        missing = [path for path in NETWORKS[name] if isinstance(path, Path) and not path.is_file()]
        if missing:
            click.echo(f"{name}: skipped: {missing[0]} does not exist")
            continue
        for precision in precisions.split(","):
            with tempfile.TemporaryDirectory() as folder:
                graph = Path(folder, "graph.onnx")
                exported = bench("export-graph", name, precision, graph)
                click.echo(f"\n{name} {precision}: {json.loads(exported.stdout)['note']}")
                shape = (concurrency, threads)
                variants = _variants(name, precision, graph, shape, frames, seconds)
                rows = interleave(variants, rounds, warm_up=0 if quick else 1)
            table.append([f"{name} {precision}", f"{concurrency}x{threads}", *cells(rows)])
    click.echo("\n" + markdown(HEAD, table))


def bench(*arguments: Any) -> Any:
    return run([sys.executable, ROOT / "scripts/bench", *map(str, arguments)])


def _variants(
    name: str, precision: str, graph: Path, shape: tuple[int, int], frames: int, seconds: int
) -> dict[str, Callable[[], Row]]:
    concurrency, threads = shape
    fixed = ("-hint", "none", "-nstreams", concurrency, "-nthreads", concurrency * threads)

    def theirs(*options: Any) -> Row:
        load_options = ("-m", graph, "-d", "CPU", "-t", seconds, "-api", "async")
        command = [sys.executable, "-c", START, *load_options, "-infer_precision", HINTS[precision]]
        return {"fps": read_fps(run([*map(str, command), *map(str, options)]).stdout)}

    def memory() -> Row:
        turn = bench("memory-turn", name, precision, concurrency, threads, seconds)
        row: Row = json.loads(turn.stdout)
        return row

    def loop() -> Row:
        engine_options = ("--engine", "openvino", "--precision", precision)
        size_options = ("--concurrency", concurrency, "--threads", threads, "--frames", frames)
        calibration_options = calibration(name, precision)
        summary = detect_video(
            clip(720, frames),
            *NETWORKS[name],
            *engine_options,
            *size_options,
            *calibration_options,
            "--no-video",
        )
        return {"fps": summary["fps"]["end_to_end"], "others": others_share(summary)}

    return {
        THEIRS: partial(theirs, *fixed, "-nireq", concurrency),
        MEMORY: memory,
        HINTED: partial(theirs, "-hint", "throughput"),
        LOOP: loop,
    }


def calibration(name: str, precision: str) -> tuple[Any, ...]:
    """Return the options that calibrate int8; the street models and other precisions need none."""
    if precision != "int8" or name.startswith("street"):
        return ()
    return ("--calibrate", STREET, "--calibrate-frames", 16)


# ----------------------------------------------------------------------
# Commands that run in their own processes


def _opened(name: str, precision: str) -> tuple[Any, Any]:
    """Return the network, and a configuration with the precision and its calibration."""
    from detector.core.config.schema import CalibrationConfig, Config, RuntimeConfig
    from detector.core.models import ModelRequest, open_network

    options = list(NETWORKS[name])
    by_name = dict(zip(options[::2], options[1::2], strict=True))
    size = by_name.get("--size")
    network = open_network(
        ModelRequest(
            str(by_name["--model"]),
            random_seed=by_name.get("--random-weights"),
            size=tuple(map(int, reversed(size.split("x")))) if size else None,
        )
    )
    needs_calibration = calibration(name, precision)
    calibrated = CalibrationConfig(calibrate=str(STREET), calibrate_frames=16)
    config = Config(
        runtime=RuntimeConfig(precision=precision),
        calibration=calibrated if needs_calibration else CalibrationConfig(),
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
    """Repeat a turn of ``scripts/bench alone`` for ``seconds``; print the mean FPS."""
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
        # Choose the number of runs so that a turn takes half a second.
        runs = max(requests, round(500 / turn(engine, picture, 10 * requests)))
        turns, until = [], time.perf_counter() + seconds
        while not turns or time.perf_counter() < until:
            turns.append(turn(engine, picture, runs))
    click.echo(json.dumps({"fps": 1e3 / statistics.fmean(turns)}))
