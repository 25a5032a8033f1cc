"""The options of ``Detector`` with their types, for type checkers and editors.

Made from detector/core/config/schema.py by ``scripts/options``: change it
there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict


class Options(TypedDict, total=False):
    """Options of the command line under their names; docs/usage.md says what each does.

    Options for writing and drawing are not included: in Python you do that yourself.
    """

    weights: str | None
    names: str | None
    family: str | None
    describe: str | None
    cfg: str | None
    class_names: Sequence[str] | None
    random_weights: int | None
    batch: int
    size: str | int | None
    rect: bool
    threads: int
    concurrency: int
    engines_dir: str | None
    precision: str
    device: str
    device_memory: str
    engine_options: Sequence[str] | None
    calibrate: str | None
    calibrate_method: str
    calibrate_frames: int
    budget: float
    conf: float
    iou: float
    classes: Sequence[str | int] | None
    agnostic: bool
    max_det: int
    infer_every: int | None
    zones: str | Mapping[str, Any] | None
    decoder: str
    frames: int | None
    stride: int
    skip_still: str | None
    full_decode: bool
    tiles: str | None
    start: str | float | None
    duration: str | float | None
    video_track: int | None
    rate: str | float | None
    grey_range: str
    blur: Sequence[str | int] | None
    sync: bool
    queue_batches: int
    nvtx: bool
    instruments: bool
    policy: str
    max_age: float
    repeat: bool
    start_timeout: float
    wait: bool


# Options that only apply to cameras.
OF_CAMERAS = frozenset(("policy", "max_age", "start_timeout", "wait"))
