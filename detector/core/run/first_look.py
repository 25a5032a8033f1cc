"""--tiles auto: inspect the source before its run to choose the number of tiles.

A few frames go through the network whole and in 2x2 tiles, so that objects visible only in tiles
count too. Objects are small if a quarter of them have a side (the square root of the box's area)
below ``SMALL`` pixels of the whole picture's input, which is COCO's limit for small objects. The
run then gets the coarsest of ``GRIDS`` that enlarges that side to ``SMALL``, or else the finest. It
gets a coarser one, or no tiles, if otherwise

- tiles would have fewer pixels than the network's input, or
- inference would take longer, by estimate, than both the video and ``BUDGET_S``.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from detector.core.errors.text import counted
from detector.core.run.plan import PlanDraft, RunPlan
from detector.core.run.sampling import sample
from detector.core.run.tiling import NONE, Tiling

if TYPE_CHECKING:
    from detector.core.models.base import Network
    from detector.core.run.loading import PhaseTimer
    from detector.core.sources.base import Source
    from detector.core.types import Detections, SourceInfo

SMALL = 32.0  # network pixels
GRIDS = ((2, 2), (3, 3))
BUDGET_S = 600.0
MIN_CONF = 0.25  # score from which an object counts, even if a command keeps lower scores


@dataclass(slots=True)
class FirstLook:
    """``sides``: objects', in pixels of the whole picture's input. ``times``: s per inference."""

    info: SourceInfo
    frames: int
    sides: list[float] = field(default_factory=list)
    times: list[float] = field(default_factory=list)

    @property
    def side(self) -> float:
        return small_side(self.sides)


def small_side(sides: Sequence[float]) -> float:
    return sorted(sides)[len(sides) // 4]


def sides_of(detections: Detections, picture: tuple[int, int], network: Network) -> list[float]:
    """Return objects' sides in pixels of the whole picture's input. ``picture``: height, width."""
    import numpy as np

    rules = network.input
    scale = min(rules.width / picture[1], rules.height / picture[0])
    areas = (detections.boxes[:, 2:] - detections.boxes[:, :2]).prod(axis=1)
    return [float(side) for side in np.sqrt(areas) * scale]


def tell_size(sides: Sequence[float], frames: int) -> str:
    objects = f"{counted(len(sides), 'object')} in {counted(frames, 'frame')}"
    side = small_side(sides)
    size = f"a quarter of {objects} are below {side:.0f} pixels of the network's input"
    return size if side < SMALL else f"{size}; this is not small ({SMALL:.0f})"


def useful_grids(
    side: float, picture: tuple[int, int], network: Network
) -> tuple[list[Tiling], str]:
    """Return the grids that help with objects of this ``side``, coarsest first, and why finer ones
    do not."""
    grids: list[Tiling] = []
    for grid in GRIDS:
        if side >= SMALL or (grids and side * GRIDS[len(grids) - 1][0] >= SMALL):
            break
        if (tiling := Tiling(grid)).is_too_fine(picture, network):
            return grids, f"; {tiling.text} tiles would have fewer pixels than that input"
        grids.append(tiling)
    return grids, ""


def load_after_look(
    draft: PlanDraft,
    timer: PhaseTimer | None,
    *,
    specs: Sequence[str],
    opens: Callable[[str], Source] | None = None,
    looks_at: Sequence[str] = (),
    **words: Any,
) -> RunPlan:
    """Load the plan. Choose its tiles from ``specs``, or, with ``opens``, from ``looks_at``."""
    whole = PlanDraft.of(draft.config.with_options({"tiles": NONE}))
    plan = whole.load(timer, specs=specs, **words)
    if opens is None:
        tiling, why = choose_tiles(plan, specs)
    else:  # a command with ``opens`` also keeps low scores, which do not count as objects
        confident = plan.selecting(max(plan.selection.conf, MIN_CONF), None)
        tiling, why = choose_tiles(confident, looks_at, opens)
    plan.loaded.notes.append(why)
    as_asked = plan.as_asked.with_options({"tiles": tiling.text})
    return replace(plan, tiling=tiling, as_asked=as_asked)


def choose_tiles(
    plan: RunPlan, specs: Sequence[str], opens: Callable[[str], Source] | None = None
) -> tuple[Tiling, str]:
    """Return the tiling that --tiles auto chooses for these sources, and a line with the reason."""
    result = look(plan, specs, opens)
    if result is None:
        return Tiling(), _format_choice(NONE, "no frame could be read")
    if not result.sides:
        return Tiling(), _format_choice(NONE, f"found nothing in {counted(result.frames, 'frame')}")
    chosen, picture = Tiling(), (result.info.width, result.info.height)
    grids, why = useful_grids(result.side, picture, plan.network)
    for tiling in grids:
        duration = float(plan.reading.duration_s or result.info.duration_s or 0)
        needed, budget = _estimate_seconds(plan, result, tiling), max(BUDGET_S, duration)
        if needed is not None and needed > budget:
            why = f"; {tiling.text} would take {needed:.0f} s, more than the {budget:.0f} s allowed"
            break
        chosen = tiling
    return chosen, _format_choice(chosen.text, tell_size(result.sides, result.frames) + why)


def _format_choice(chosen: str, why: str) -> str:
    return f"--tiles auto: {chosen}: {why}"


def _estimate_seconds(plan: RunPlan, result: FirstLook, tiling: Tiling) -> float | None:
    """Estimate the run's seconds of inference; None if the number of frames is unknown."""
    frames = plan.reading.frames_ahead(result.info)
    if frames is None:
        return None
    concurrency = plan.loaded.engine.concurrency
    return frames * tiling.inputs * statistics.median(result.times) / concurrency


def look(
    plan: RunPlan, specs: Sequence[str], opens: Callable[[str], Source] | None = None
) -> FirstLook | None:
    """Inspect frames of the first source that opens; None if none does."""
    from detector.core.types import size_of

    taken = sample(plan.reading, specs, opens=opens)
    if taken is None:
        return None
    result = FirstLook(taken.info, len(taken.pictures))
    for tiling in (Tiling(), Tiling(GRIDS[0])):
        tiled = replace(plan, tiling=tiling)
        preprocess, head, nms = tiled.stages()
        request = tiled.requests[0]
        sides: list[float] = []
        for picture in taken.pictures:
            fit = preprocess(picture, request.slot[0])
            start = time.perf_counter()
            outputs = request.infer(1)
            if tiling.grid is None:
                result.times.append(time.perf_counter() - start)
            detections = fit.to_source(nms(head([output[:1] for output in outputs])))
            sides += sides_of(detections, size_of(picture), plan.network)
        if len(sides) > len(result.sides):
            result.sides = sides
    return result
