"""Return the CPU times, page faults and clocks that the recorder measured in the plain run."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace

from detector.core.errors import UsageError
from detector.core.errors.machine import NotHereError
from detector.lab.profile.base import Occasion, Pass
from detector.lab.session.passes import MomentsFacts
from detector.lab.why import find_key_frames


def read_moments(occasion: Occasion) -> MomentsFacts:
    if occasion.recorder is None or not occasion.recorder.frames:
        raise NotHereError("the plain run was not recorded, or wrote no frame")
    if not os.path.exists("/proc/self/schedstat"):
        raise NotHereError("this system does not report thread times (/proc/self/schedstat)")
    document = occasion.plain.document
    facts = occasion.recorder.facts(document.seconds["run"], document.sync)
    with suppress(UsageError):
        facts = replace(facts, keys=sorted(find_key_frames(document)))
    return facts


PASS = Pass(
    order=1,
    what="clock speed and faults per frame",
    facts=MomentsFacts,
    run=read_moments,
    on_request="--moments",
)
