"""The order of a frame's stages, and the groups of stages that share a thread.

Every run has the seven stages of ``spans.STAGES``. A run may have more stages between ``nms`` and
``annotate`` (``stages/between``). Any unknown name counts as one of these other stages, so we can
also read a session with a stage that is not installed here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from detector.core.timeline.spans import ANNOTATE, HEAD, INFER, NMS, PREPROCESS, READ, STAGES, WRITE

AFTER_NMS = STAGES.index(NMS) + 1
READING, INFERENCE, WRITING = "reading", "inference", "writing"
NAME = re.compile(r"[a-z][a-z0-9_]{0,30}")
# In the overlapped loop the groups run concurrently, each on the threads that THREADS names.
GROUPS = {READING: (READ, PREPROCESS), INFERENCE: (INFER, HEAD, NMS), WRITING: (ANNOTATE, WRITE)}
THREADS = {"reader": READING, "worker": INFERENCE, "writer": WRITING}


def in_order(names: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the seven stages, and after ``nms`` the other ``names``, in the given order."""
    added = dict.fromkeys(name for name in names if name not in STAGES)
    return *STAGES[:AFTER_NMS], *added, *STAGES[AFTER_NMS:]


def group_of(stage: str) -> str:
    """Return a stage's group; stages other than the seven belong to the writer."""
    return next((group for group, stages in GROUPS.items() if stage in stages), WRITING)


def is_after_inference(stage: str) -> bool:
    return stage not in STAGES[: STAGES.index(INFER) + 1]


def ends_of_frames(names: Iterable[str]) -> tuple[str, ...]:
    """Return the stages that can end a frame: ``write`` or, without it, all after ``infer``."""
    after_inference = tuple(filter(is_after_inference, names))
    return (WRITE,) if WRITE in after_inference else after_inference


def grouped(names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return group -> its stages in order. ``names`` may add stages to the seven."""
    stages = in_order(names)
    return {group: tuple(stage for stage in stages if group_of(stage) == group) for group in GROUPS}


MAX_FRAMES_PER_ROW = 16  # a batch holds at most this many frames per row


def longest_batch(batch: int, images: int) -> int:
    """Return how many frames one batch may hold. Frames that are not inferred take none of the
    ``batch`` rows. Half of the ``images`` (buffers for pictures) are left for the next batch."""
    return max(batch, min(MAX_FRAMES_PER_ROW * batch, images // 2))
