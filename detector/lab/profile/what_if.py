"""What would happen if a stage were faster: the run replayed with one thing changed.

With ``--prove`` the changes are also tried for real (stand_ins.py).
"""

from __future__ import annotations

import statistics
import time
from contextlib import ExitStack
from dataclasses import replace

from detector.core.errors import DetectVideoError
from detector.core.errors.machine import NotHereError
from detector.core.loop.parts import places
from detector.core.run.wire import first_picture_size, load_model
from detector.lab.analysis.loop.replay import Load
from detector.lab.analysis.loop.what_if import (
    Alone,
    Cost,
    alone_in,
    list_doubts,
    predict,
    rebatch,
    replay_session,
    stage_costs,
)
from detector.lab.profile.base import Occasion, Pass, Varies, execution_of
from detector.lab.session.passes import BesideCost, StageCost, WhatIfFacts

LARGER = 4  # times the run's batch
CALLS = 7  # of infer, to measure what a larger batch costs


def predict_changes(occasion: Occasion) -> WhatIfFacts:
    document = occasion.plain.document
    if not document.frames.written:
        raise NotHereError("the run wrote no frame")
    config = occasion.config
    alone = None if config.loop.sync else _measure_alone(occasion)
    played = replay_session(occasion.plain, alone=alone)
    if played is None:
        raise NotHereError("the run recorded no spans")
    larger, reason = _in_larger_batches(occasion, played.load)
    facts = WhatIfFacts(
        replay_error=played.error,
        measured_fps=played.load.frames / played.measured_s,
        predictions=predict(played, larger),
        costs={stage: _in_ms(cost) for stage, cost in stage_costs(document, alone).items()},
        doubts=list_doubts(document, played.error),
        no_batch_because=reason,
    )
    if not occasion.prove:
        return facts
    from detector.lab.profile.stand_ins import list_unsteady, prove

    proofs = prove(occasion.source, config, facts.predictions)
    return replace(facts, proofs=proofs, doubts=[*(facts.doubts or ()), *list_unsteady(proofs)])


def _measure_alone(occasion: Occasion) -> Alone:
    """What the calls of each stage take in one plain loop, where nothing else of ours runs."""
    return alone_in(occasion.again(sync=True).document)


def _in_ms(cost: Cost) -> StageCost:
    aside = cost.aside
    beside = None if aside is None else BesideCost(aside.seconds * 1e3, aside.cpu * 1e3, aside.room)
    return StageCost(cost.seconds * 1e3, cost.cpu * 1e3, beside)


def _in_larger_batches(occasion: Occasion, load: Load) -> tuple[Load | None, str | None]:
    """The load in batches ``LARGER`` times as large, or None and the reason why it is unknown."""
    batch, video = LARGER * load.shape.batch, occasion.plain.document.each[0].video
    if load.frames < LARGER * batch or video.width is None or video.height is None:
        return None, f"batch {batch}: too few frames"
    try:
        ratio = _cost_ratio(occasion, load.shape.batch, batch)
    except DetectVideoError as error:
        return None, f"batch {batch}: {' '.join(str(error).split())}"
    images = places(batch, load.shape.requests, video.width, video.height)
    return rebatch(load, batch, ratio, images), None


def _cost_ratio(occasion: Occasion, small: int, large: int) -> float:
    """How much longer an infer call of the large batch takes than one of the small batch.

    Medians of calls in turn, one request at a time.
    """
    config = occasion.config
    picture = first_picture_size([occasion.source], config)
    with ExitStack() as opened:
        requests = []
        for batch in (small, large):
            runtime = replace(config.runtime, batch=batch, concurrency=1)
            machine = load_model(replace(config, runtime=runtime), picture=picture)
            occasion.seen.append(execution_of(machine))
            requests.append((opened.enter_context(machine.engine).requests[0], batch))
        took: dict[int, list[float]] = {small: [], large: []}
        for _ in range(CALLS):
            for request, batch in requests:
                start = time.perf_counter()
                request.infer(batch)
                took[batch].append(time.perf_counter() - start)
    return statistics.median(took[large]) / statistics.median(took[small])


PASS = Pass(
    order=2,
    what="the run replayed with one thing changed",
    facts=WhatIfFacts,
    run=predict_changes,
    undisturbed="what is run again (a plain loop; with --prove more) runs without a profiler",
    varies=Varies(("sync", "batch", "concurrency"), "also in one plain loop and in larger batches"),
)
