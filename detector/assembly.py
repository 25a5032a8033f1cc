"""A source, a machine and sinks, put together for the loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detector.config import Config
from detector.machine import Machine, stage_functions

if TYPE_CHECKING:
    from detector.loop.parts import Parts, Progress
    from detector.session.outcome import SourceRun
    from detector.sinks.base import Sink
    from detector.sources.base import Source
    from detector.types import Detections, Image, SourceInfo


def loop_shape(parts: Parts, config: Config) -> dict[str, Any]:
    """What bounds the loop, for whoever replays it."""
    from detector.loop.batches import image_count, results_ahead

    return {
        "batch": len(parts.requests[0].slot),
        "concurrency": parts.concurrency,
        "requests": len(parts.requests),
        "images": image_count(parts),
        "queue_batches": parts.queue_batches,
        "results": results_ahead(parts),
        "sync": config.loop.sync,
    }


def sink_options(config: Config, machine: Machine) -> dict[str, dict[str, Any]]:
    video = {"preset": config.output.preset, "crf": config.output.crf}
    return {"video": video, **{name: {"remark": machine.remark} for name in ("jsonl", "csv", "coco", "mot", "yolo")}}


def open_sinks(paths: dict[str, Path], info: SourceInfo, options: dict[str, dict[str, Any]]) -> list[Sink]:
    """Opened sinks, in the order of ``paths``; those that were opened before one failed are aborted."""
    from detector import sinks

    opened: list[Sink] = []
    try:
        for name, path in paths.items():
            sink = sinks.open(name, path, **options.get(name, {}))
            sink.open(info)
            opened.append(sink)
    except BaseException:
        for sink in opened:
            sink.abort()
        raise
    return opened


def close_sinks(sinks: list[Sink], run: SourceRun, progress: Progress) -> None:
    """Finishes every sink; without a frame (interrupted at once) there is nothing to finish."""
    for sink in sinks:
        if progress.written:
            run.outputs[sink.name] = str(sink.close())
        else:
            sink.abort()
        run.notes += sink.notes


def make_parts(config: Config, machine: Machine, source: Source, sinks: Sequence[Sink]) -> Parts:
    """What the loop needs for one source."""
    from detector.loop.parts import Parts

    preprocess, head, nms = stage_functions(config, machine)
    draw: Callable[[Image, Detections], None] | None = None
    if any(sink.name in ("video", "pictures") for sink in sinks):
        from detector.stages.annotate import annotate

        draw = partial(annotate, remark=machine.remark)
    return Parts(
        source=source,
        requests=machine.engine.requests,
        concurrency=machine.engine.concurrency,
        preprocess=preprocess,
        head=head,
        nms=nms,
        annotate=draw,
        sinks=sinks,
        queue_batches=config.loop.queue_batches,
    )
