"""The training loop: a schedule by step count, checkpoints, a log of one JSON line every few steps."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from model.augment import Augmenter
from model.batches import batches, make_batch
from model.loss import loss, to_device
from model.network import Street, decoded
from model.optimise import Average, Optimisers, rate
from model.teacher import Teacher

# Share of the steps at which the canvas grows: (height, width). The full size comes last, with the falling rate.
PHASES = ((0.5, (160, 256)), (0.75, (192, 320)), (1.0, (256, 416)))
MOSAIC, WITHOUT_MOSAIC = 0.7, 0.12  # share of samples; the last share of the steps without
CLIP = 10.0
CHECKPOINT_S = 180
LOG_EVERY = 20


@dataclass(frozen=True, slots=True)
class Options:
    run: Path
    steps: int
    batch: int = 16
    seed: int = 0
    device: str = "cpu"
    bf16: bool = True
    workers: int = 1
    evaluate_every: int = 0  # steps; 0: at the end of each phase
    start: Path | None = None  # a checkpoint of a finished run
    peak: float = 1.0  # the highest rate, as a share of the usual one
    full_canvas: bool = False


def size_at(step: int, options: Options) -> tuple[int, int]:
    """Height, width."""
    if options.full_canvas:
        return PHASES[-1][1]
    return next(size for end, size in PHASES if step < end * options.steps or end == 1.0)


def train(network: Street, augmenter: Augmenter, teacher: Teacher, options: Options, judge: Callable) -> Average:
    """``judge(network)`` -> figures for the log. Goes on from ``options.run/checkpoint.pt`` where there is one."""
    torch.manual_seed(options.seed)
    torch.set_flush_denormal(True)  # without it CPU steps slow down as activations fade
    network = network.to(options.device, memory_format=torch.channels_last)
    optimisers, average = Optimisers(network), Average(network)
    if options.bf16 and options.device == "cpu":
        network.use_half()
    options.run.mkdir(parents=True, exist_ok=True)
    kept = options.run / "checkpoint.pt"
    start = resume(kept, network, average, optimisers)
    if options.start and not kept.is_file():
        resume(options.start, network, average, optimisers)
        network.load_state_dict(average.network.state_dict())

    def make(number: int):
        size = size_at(number, options)
        mosaic = MOSAIC if number < (1 - WITHOUT_MOSAIC) * options.steps else 0.0
        return make_batch(augmenter, teacher, options.seed, number, size, options.batch, mosaic)

    stream = batches(make, start, options.steps, options.workers, 2 * options.workers)
    saved = began = time.monotonic()
    with bar() as progress, (options.run / "log.jsonl").open("a", encoding="utf-8") as log:
        task = progress.add_task("training", total=options.steps, completed=start, note="")
        for step, batch in enumerate(stream, start):
            row = one_step(network, average, optimisers, batch, step, options)
            last = step + 1 == options.steps
            if step % LOG_EVERY == 0 or last:
                speed = (step + 1 - start) * options.batch / (time.monotonic() - began)
                row = {"step": step, **{key: round(float(value), 4) for key, value in row.items()}}
                write_row(log, row | {"pictures_per_s": round(speed, 1)})
                progress.update(task, note=f"loss {row['loss']:.3f}, {speed:.0f} pictures/s")
            if last or due(step + 1, options):
                write_row(log, {"step": step + 1, "size": batch.images.shape[1:3], **judge(average.network)})
            if last or time.monotonic() - saved > CHECKPOINT_S:
                save(options, network, average, optimisers, step + 1)
                saved = time.monotonic()
            progress.advance(task)
    return average


def due(step: int, options: Options) -> bool:
    if options.evaluate_every:
        return step % options.evaluate_every == 0
    return size_at(step - 1, options) != size_at(step, options)


def one_step(network, average, optimisers, batch, step: int, options: Options) -> dict:
    tensors = to_device(batch, options.device)
    # On the CPU the convolutions themselves go to bf16, and what follows them stays in it.
    mixed = torch.autocast("cuda", torch.bfloat16) if options.bf16 and options.device == "cuda" else nullcontext()
    network.train()
    with mixed:
        maps = network(tensors.images.contiguous(memory_format=torch.channels_last))
    boxes, logits = decoded(maps, tuple(tensors.images.shape[2:]))
    total, parts = loss(tensors, boxes, logits)
    total.backward()
    norm = torch.nn.utils.clip_grad_norm_(network.parameters(), CLIP)
    share = options.peak * rate(step, options.steps)
    if torch.isfinite(norm):
        optimisers.step(share)
        network.pin_objectness()
        average.update(network, step)
    else:
        network.zero_grad(set_to_none=True)
    return {"loss": total.detach(), **parts, "norm": norm, "rate": share}


def bar() -> Progress:
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    return Progress(TextColumn("{task.description}"), *columns, TextColumn("{task.fields[note]}"))


def write_row(log, row: dict) -> None:
    log.write(json.dumps(row) + "\n")
    log.flush()


def save(options: Options, network, average: Average, optimisers: Optimisers, step: int) -> None:
    """A whole file or none."""
    state = {
        "step": step,
        "network": network.state_dict(),
        "average": average.network.state_dict(),
        "optimisers": optimisers.state_dict(),
        "options": {key: str(value) for key, value in asdict(options).items()},
    }
    target = options.run / "checkpoint.pt"
    partial = target.with_name(target.name + ".part")
    torch.save(state, partial)
    os.replace(partial, target)


def resume(path: Path, network, average: Average, optimisers: Optimisers) -> int:
    if not path.is_file():
        return 0
    state = torch.load(path, map_location="cpu", weights_only=True)
    network.load_state_dict(state["network"])
    average.network.load_state_dict(state["average"])
    optimisers.load_state_dict(state["optimisers"])
    return int(state["step"])
