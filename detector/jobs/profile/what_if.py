"""What would happen if a stage were faster: the run played again on paper, and with --prove, for real."""

from __future__ import annotations

import statistics
import time
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from detector.analysis.loop.replay import Load
from detector.analysis.loop.what_if import (
    Alone,
    Cost,
    alone_in,
    costs,
    doubts,
    predictions,
    rebatched,
    replay_of,
)
from detector.config.schema import Config
from detector.errors import DetectVideoError
from detector.jobs.profile.base import NotHereError, Occasion, as_it_ran, run_again
from detector.loop.parts import places
from detector.run.wire import first_picture_size, load_model

ORDER = 2
WHAT = "the run replayed with one thing changed"
UNDISTURBED = "what is run again (a plain loop; with --prove more) runs without a profiler"
LARGER = 4  # times the run's batch
CALLS = 7  # of infer, to tell what a larger batch costs


def run(occasion: Occasion) -> dict[str, Any]:
    document = occasion.plain.document
    if not document["frames"]["written"]:
        raise NotHereError("the run wrote no frame")
    config = as_it_ran(occasion.config, document)
    alone = None if config.loop.sync else _alone(occasion.source, config)
    played = replay_of(occasion.plain, alone=alone)
    if played is None:
        raise NotHereError("the run recorded no spans")
    larger, reason = _in_larger_batches(occasion, config, played.load)
    rows = [prediction.as_json() for prediction in predictions(played, larger)]
    facts: dict[str, Any] = {
        "replay_error": played.error,
        "measured_fps": played.load.frames / played.measured_s,
        "predictions": rows,
        "costs": {stage: _as_json(cost) for stage, cost in costs(document, alone).items()},
        "doubts": doubts(document, played.error),
        "no_batch_because": reason,
    }
    if occasion.prove:
        from detector.jobs.profile.stand_ins import prove, unsteady

        facts["proofs"] = prove(occasion.source, config, rows)
        facts["doubts"] += unsteady(facts["proofs"])
    return facts


def _alone(source: str, config: Config) -> Alone:
    """What the stages take in one plain loop."""
    return alone_in(
        run_again(source, replace(config, loop=replace(config.loop, sync=True))).document
    )


def _as_json(cost: Cost) -> dict[str, Any]:
    beside = cost.aside and {
        "ms": cost.aside.seconds * 1e3,
        "cpu_ms": cost.aside.cpu * 1e3,
        "room": cost.aside.room,
    }
    return {"ms": cost.seconds * 1e3, "cpu_ms": cost.cpu * 1e3, "beside": beside}


def _in_larger_batches(
    occasion: Occasion, config: Config, load: Load
) -> tuple[Load | None, str | None]:
    """The load in batches ``LARGER`` times as large; None and the reason where that cannot be told."""
    batch, video = LARGER * load.shape.batch, occasion.plain.document.get("video")
    if load.frames < LARGER * batch or video is None or video["width"] is None:
        return None, f"batch {batch}: too few frames"
    try:
        ratio = _cost_ratio(occasion.source, config, load.shape.batch, batch)
    except DetectVideoError as error:
        return None, f"batch {batch}: {' '.join(str(error).split())}"
    images = places(batch, load.shape.requests, video["width"], video["height"])
    return rebatched(load, batch, ratio, images), None


def _cost_ratio(source: str, config: Config, small: int, large: int) -> float:
    """Time of an infer call of one batch over another's, one request at a time, called in turn; the median."""
    picture = first_picture_size([source], config)
    with ExitStack() as opened:
        requests = []
        for batch in (small, large):
            runtime = replace(config.runtime, batch=batch, concurrency=1)
            machine = load_model(replace(config, runtime=runtime), picture=picture)
            requests.append((opened.enter_context(machine.engine).requests[0], batch))
        took: dict[int, list[float]] = {small: [], large: []}
        for _ in range(CALLS):
            for request, batch in requests:
                start = time.perf_counter()
                request.infer(batch)
                took[batch].append(time.perf_counter() - start)
    return statistics.median(took[large]) / statistics.median(took[small])
