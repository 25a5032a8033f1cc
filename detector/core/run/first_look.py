"""--tiles auto: inspect the source before its run to choose the number of tiles.

A few frames go through the network whole and in 2x2 tiles, so that objects visible only in tiles
count too. Objects are small if a quarter of them have a side (the root of the box's area) below
``SMALL`` pixels of the input of the whole picture: COCO's limit for small objects. The run then
gets the finest of ``GRIDS`` that

- brings the side up to ``SMALL``, or is the finest available,
- enlarges nothing: no tile has fewer pixels than the network's input,
- keeps the run's inference within its budget: as long as the video plays, but at least
  ``BUDGET_S``. We time one input for that.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from detector.core.errors.text import counted
from detector.core.run.plan import Asked, RunPlan
from detector.core.run.sampling import sample
from detector.core.run.tiling import NONE, Tiling

if TYPE_CHECKING:
    from detector.core.models.base import Network
    from detector.core.run.loading import PhaseTimer
    from detector.core.sources.base import Source
    from detector.core.types import Detections, Picture, SourceInfo

SMALL = 32.0  # network pixels
GRIDS = ((2, 2), (3, 3))
BUDGET_S = 600.0
SURE = 0.25  # least score of an object that counts, if a command keeps lower ones


@dataclass(slots=True)
class FirstLook:
    """Objects seen. ``sides``: pixels of the whole picture's input. ``input_s``: median time."""

    info: SourceInfo
    frames: int
    sides: list[float] = field(default_factory=list)
    times: list[float] = field(default_factory=list)

    @property
    def side(self) -> float:
        return small_side(self.sides)


def small_side(sides: Sequence[float]) -> float:
    return sorted(sides)[len(sides) // 4]


def sides_of(found: Detections, picture: tuple[int, int], network: Network) -> list[float]:
    """Return objects' sides in pixels of the whole picture's input. ``picture``: height, width."""
    import numpy as np

    rules = network.input
    scale = min(rules.width / picture[1], rules.height / picture[0])
    sizes = (found.boxes[:, 2:] - found.boxes[:, :2]).prod(axis=1)
    return [float(side) for side in np.sqrt(sizes) * scale]


def tell_size(sides: Sequence[float], frames: int) -> str:
    found = f"{counted(len(sides), 'object')} in {counted(frames, 'frame')}"
    side = small_side(sides)
    size = f"a quarter of {found} are below {side:.0f} pixels of the network's input"
    return size if side < SMALL else f"{size}; this is not small ({SMALL:.0f})"


def useful_grids(
    side: float, picture: tuple[int, int], network: Network
) -> tuple[list[Tiling], str]:
    """Return grids for objects of such a side, coarsest first, and why there is no finer one."""
    grids: list[Tiling] = []
    for grid in GRIDS:
        if side >= SMALL or (grids and side * GRIDS[len(grids) - 1][0] >= SMALL):
            break
        if (tiling := Tiling(grid)).is_too_fine(picture, network):
            return grids, f"; {tiling.text} tiles would have fewer pixels than that input"
        grids.append(tiling)
    return grids, ""


def load_after_look(
    asked: Asked,
    timer: PhaseTimer | None,
    *,
    specs: Sequence[str],
    opens: Callable[[str], Source] | None = None,
    looks_at: Sequence[str] = (),
    **words: Any,
) -> RunPlan:
    """Load the plan with the tiles that the look chose. ``opens``: how a command opens a source."""
    whole = Asked.of(asked.config.with_options({"tiles": NONE}))
    plan = whole.load(timer, specs=specs, **words)
    if opens is None:
        tiling, why = choose_tiles(plan, specs)
    else:  # such a command keeps scores too low to count as found
        sure = plan.selecting(max(plan.selection.conf, SURE), None)
        tiling, why = choose_tiles(sure, looks_at, opens)
    plan.loaded.notes.append(why)
    as_asked = plan.as_asked.with_options({"tiles": tiling.text})
    return replace(plan, tiling=tiling, as_asked=as_asked)


def choose_tiles(
    plan: RunPlan, specs: Sequence[str], opens: Callable[[str], Source] | None = None
) -> tuple[Tiling, str]:
    """Return the tiling that --tiles auto chooses for these sources, and a line with the reason."""
    seen = look(plan, specs, opens)
    if seen is None:
        return Tiling(), _line(NONE, "no frame could be read")
    if not seen.sides:
        return Tiling(), _line(NONE, f"found nothing in {counted(seen.frames, 'frame')}")
    chosen, picture = Tiling(), (seen.info.width, seen.info.height)
    grids, why = useful_grids(seen.side, picture, plan.network)
    for tiling in grids:
        needed, budget = _seconds(plan, seen, tiling), _budget(plan, seen.info)
        if needed is not None and needed > budget:
            why = f"; {tiling.text} would take {needed:.0f} s, more than the {budget:.0f} s allowed"
            break
        chosen = tiling
    return chosen, _line(chosen.text, tell_size(seen.sides, seen.frames) + why)


def _line(chosen: str, why: str) -> str:
    return f"--tiles auto: {chosen}: {why}"


def _budget(plan: RunPlan, info: SourceInfo) -> float:
    duration = plan.reading.duration_s or info.duration_s or 0.0
    return max(BUDGET_S, float(duration))


def _seconds(plan: RunPlan, seen: FirstLook, tiling: Tiling) -> float | None:
    """Return the run's seconds of inference; None if the number of frames is unknown."""
    frames = plan.reading.frames_ahead(seen.info)
    if frames is None:
        return None
    at_once = plan.loaded.engine.concurrency
    return frames * tiling.inputs * statistics.median(seen.times) / at_once


def look(
    plan: RunPlan, specs: Sequence[str], opens: Callable[[str], Source] | None = None
) -> FirstLook | None:
    """Inspect a few frames (``sampling.sample``) of the first source that opens."""
    taken = sample(plan.reading, specs, opens=opens)
    return None if taken is None else _look_at(plan, taken.pictures, taken.info)


def _look_at(plan: RunPlan, frames: Sequence[Picture], info: SourceInfo) -> FirstLook:
    from detector.core.types import size_of

    seen = FirstLook(info, len(frames))
    for tiling in (Tiling(), Tiling(GRIDS[0])):
        looking = replace(plan, tiling=tiling)
        preprocess, head, nms = looking.stages()
        request = looking.requests[0]
        sides: list[float] = []
        for picture in frames:
            fit = preprocess(picture, request.slot[0])
            start = time.perf_counter()
            outputs = request.infer(1)
            if tiling.grid is None:
                seen.times.append(time.perf_counter() - start)
            found = fit.to_source(nms(head([one[:1] for one in outputs])))
            sides += sides_of(found, size_of(picture), plan.network)
        if len(sides) > len(seen.sides):
            seen.sides = sides
    return seen
