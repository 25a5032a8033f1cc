"""The training loop: a schedule by step number, checkpoints, evaluation, a log in JSON lines."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from model import evaluation
from model.batches import Augmenter, Batch, batches, make_batch
from model.consistency import MOVED, random_moves, unsteadiness
from model.loss import loss, to_device
from model.network import Street, decode
from model.optimiser import Average, Optimisers, rate
from model.restart import read_into
from model.teacher import Teacher

# (share of steps at a phase's end, canvas (height, width)). The last phase has low learning rates.
PHASES = ((0.5, (160, 256)), (0.75, (192, 320)), (1.0, (256, 416)))
MOSAIC = 0.7  # share of the samples that combine four pictures
WITHOUT_MOSAIC = 0.12  # share of the steps without mosaics, at the end of the training
CLIP = 10.0  # gradients are clipped to this norm
CHECKPOINT_S = 180
LOG_EVERY = 20  # steps
STATISTICS = 12  # batches used to measure the mean and variance that folding removed

Judge = Callable[[Street], dict[str, Any]]  # returns entries of the log


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
    start: Path | None = None  # the checkpoint of a finished run, or shipped weights
    peak: float = 1.0  # highest learning rate, as a share of the usual one
    full_canvas: bool = False
    canvases: tuple[tuple[int, int], ...] = ()  # (height, width); each step uses a random one
    consistency: float = 0.0  # weight of the consistency loss; 0: not computed


def train(
    network: Street, augmenter: Augmenter, teacher: Teacher, options: Options, judge: Judge
) -> Average:
    """Train to the last step; continue from ``options.run/checkpoint.pt`` if it exists."""
    torch.manual_seed(options.seed)
    torch.set_flush_denormal(True)  # otherwise denormal activations slow down a CPU
    network = network.to(options.device, memory_format=torch.channels_last)
    optimisers, average = Optimisers(network), Average(network)
    if options.bf16 and options.device == "cpu":
        network.use_half()
    options.run.mkdir(parents=True, exist_ok=True)
    checkpoint = options.run / "checkpoint.pt"
    start = load(checkpoint, network, average, optimisers)

    def make(number: int) -> Batch:
        size = size_at(number, options)
        mosaic = MOSAIC if number < (1 - WITHOUT_MOSAIC) * options.steps else 0.0
        return make_batch(augmenter, teacher, options.seed, number, size, options.batch, mosaic)

    if options.start and not checkpoint.is_file():
        _begin_with(options.start, network, average, optimisers, options, make)

    stream = batches(make, start, options.steps, options.workers, 2 * options.workers)
    saved = start_time = time.monotonic()
    with progress_bar() as progress, (options.run / "log.jsonl").open("a", encoding="utf-8") as log:
        task = progress.add_task("training", total=options.steps, completed=start, note="")
        for step, batch in enumerate(stream, start):
            row = take_step(network, average, optimisers, batch, step, options)
            last = step + 1 == options.steps
            if step % LOG_EVERY == 0 or last:
                speed = (step + 1 - start) * options.batch / (time.monotonic() - start_time)
                row = {"step": step, **{key: round(float(v), 4) for key, v in row.items()}}
                write_row(log, row | {"pictures_per_s": round(speed, 1)})
                progress.update(task, note=f"loss {row['loss']:.3f}, {speed:.0f} pictures/s")
            if last or is_evaluation_due(step + 1, options):
                write_row(log, {"step": step + 1, **judge(average.network)})
            if last or time.monotonic() - saved > CHECKPOINT_S:
                save(options, network, average, optimisers, step + 1)
                saved = time.monotonic()
            progress.advance(task)
    return average


def _begin_with(
    file: Path,
    network: Street,
    average: Average,
    optimisers: Optimisers,
    options: Options,
    make: Callable[[int], Batch],
) -> None:
    """Start from the average and the momenta of a finished run, or from shipped weights."""
    if file.suffix == ".pt":
        load(file, network, average, optimisers)
        network.load_state_dict(average.network.state_dict())
        return
    seen = (to_device(make(number), options.device).images for number in range(STATISTICS))
    read_into(network, file, seen)
    average.network.load_state_dict(network.state_dict())


def take_step(
    network: Street,
    average: Average,
    optimisers: Optimisers,
    batch: Batch,
    step: int,
    options: Options,
) -> dict:
    """Train on one batch; return entries for the log."""
    tensors = to_device(batch, options.device)
    size, images, moves = tuple(tensors.images.shape[2:]), tensors.images, None
    if options.consistency:
        rng = np.random.default_rng([options.seed, step, 2])
        moves = random_moves(rng, min(MOVED, len(images)), size).to(options.device)
        images = torch.cat([images, moves.pictures(images[: len(moves.zoom)])])
    # On a CPU the blocks themselves compute in bf16 (Street.use_half).
    mixed = nullcontext()
    if options.bf16 and options.device == "cuda":
        mixed = torch.autocast("cuda", torch.bfloat16)
    network.train()
    with mixed:
        maps = network(images.contiguous(memory_format=torch.channels_last))
    boxes, logits = decode(maps, size)
    own = len(tensors.images)
    total, parts = loss(tensors, boxes[:own], logits[:own])
    if moves is not None:
        unsteady = unsteadiness(tensors, moves, boxes, logits)
        total = total + options.consistency * unsteady
        parts["unsteady"] = unsteady.detach()
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


def size_at(step: int, options: Options) -> tuple[int, int]:
    """Return the canvas of a step, (height, width)."""
    if options.canvases:
        rng = np.random.default_rng([options.seed, step, 1])
        return options.canvases[int(rng.integers(len(options.canvases)))]
    if options.full_canvas:
        return PHASES[-1][1]
    return next(size for end, size in PHASES if step < end * options.steps or end == 1.0)


def is_evaluation_due(step: int, options: Options) -> bool:
    if options.evaluate_every or options.canvases:
        return bool(options.evaluate_every) and step % options.evaluate_every == 0
    return size_at(step - 1, options) != size_at(step, options)


def judge_of(labelled: Path, size: tuple[int, int], device: str) -> Judge:
    """Return a function that evaluates a network on validation pictures that may guide choices."""
    pictures = [picture for picture in evaluation.read_validation(labelled) if not picture.held_out]

    def judge(network: Street) -> dict[str, Any]:
        network.eval()
        model = as_model(network, size, device)
        return {"size": size, **evaluation.figures(evaluation.judge_pictures(model, pictures))}

    return judge


def as_model(network: Street, size: tuple[int, int], device: str) -> evaluation.Model:
    """Wrap the network as a model for ``evaluation``, in 32-bit floats."""

    @torch.no_grad()
    def model(image):
        slot, fit = evaluation.fit_into(image, size, "centre", 128)
        x = torch.from_numpy(slot).to(device).permute(2, 0, 1)[None].float() / 255
        maps = network(x.contiguous(memory_format=torch.channels_last))
        boxes, logits = decode(maps, size)
        in_source = evaluation.to_source(boxes[0].cpu().numpy(), fit)
        return in_source, logits[0].sigmoid().cpu().numpy()

    return model


def progress_bar() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )


def write_row(log, row: dict) -> None:
    log.write(json.dumps(row) + "\n")
    log.flush()


def save(
    options: Options, network: Street, average: Average, optimisers: Optimisers, step: int
) -> None:
    """Write checkpoint.pt atomically."""
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


def load(path: Path, network: Street, average: Average, optimisers: Optimisers) -> int:
    """Load a checkpoint; return the step to continue with, 0 if there is no checkpoint."""
    if not path.is_file():
        return 0
    state = torch.load(path, map_location="cpu", weights_only=True)
    network.load_state_dict(state["network"])
    average.network.load_state_dict(state["average"])
    optimisers.load_state_dict(state["optimisers"])
    return int(state["step"])
