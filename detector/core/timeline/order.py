"""The order of a frame's stages, and which of them run one after the other in one thread.

Every run has the seven of ``spans.STAGES``. A run may have more between nms and annotate
(``stages/between``): any other name is one of those, so sessions can be read without that stage.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from detector.core.timeline.spans import ANNOTATE, HEAD, INFER, NMS, PREPROCESS, READ, STAGES, WRITE

BEHIND = STAGES.index(NMS) + 1
READING, INFERENCE, WRITING = "reading", "inference", "writing"
NAME = re.compile(r"[a-z][a-z0-9_]{0,30}")
# In the overlapped loop the groups run concurrently, each on threads with these names.
GROUPS = {READING: (READ, PREPROCESS), INFERENCE: (INFER, HEAD, NMS), WRITING: (ANNOTATE, WRITE)}
THREADS = {"reader": READING, "worker": INFERENCE, "writer": WRITING}


def in_order(names: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the seven stages with the other ``names`` between nms and annotate, unsorted."""
    added = dict.fromkeys(name for name in names if name not in STAGES)
    return *STAGES[:BEHIND], *added, *STAGES[BEHIND:]


def group_of(stage: str) -> str:
    """Return a stage's group; stages other than the seven belong to the writer."""
    return next((group for group, stages in GROUPS.items() if stage in stages), WRITING)


def is_behind_inference(stage: str) -> bool:
    return stage not in STAGES[: STAGES.index(INFER) + 1]


def ends_of_frames(names: Iterable[str]) -> tuple[str, ...]:
    """Return the stages that end a frame: its write; if nothing writes, all after infer."""
    behind = tuple(filter(is_behind_inference, names))
    return (WRITE,) if WRITE in behind else behind


def grouped(names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return the stages of each group in their order, with the ``names`` beyond the seven."""
    stages = in_order(names)
    return {group: tuple(one for one in stages if group_of(one) == group) for group in GROUPS}


SPARED = 16  # frames of a batch for each of its rows, at most


def longest_batch(batch: int, images: int) -> int:
    """Return the most frames of a batch with so many rows; frames that are not inferred take no
    row. If one batch held all ``images`` (pictures in flight), no other could be filled."""
    return max(batch, min(SPARED * batch, images // 2))
