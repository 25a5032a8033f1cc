"""What ``profile --json`` prints: of a run with its passes, and of a recording by nsys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from msgspec import Struct

from detector.core.session.codec import SCHEMA, json_schema, to_builtins
from detector.core.session.document import (
    Amount,
    Count,
    Duration,
    FrameCounts,
    LoopSizes,
    Rates,
    Verdict,
)
from detector.lab.session.passes import FACTS, CriticalPathFacts, PassRecord, pass_schema

PROFILE_SCHEMA = 2  # 1: what_if was a list of predictions, beside three more keys
OTHER_NAMES = {"frames": "slowest_frames"}  # "frames" are the counts of the run


# A recording


@dataclass(frozen=True, slots=True)
class StepRow:
    """All calls of one stage, milliseconds. ``share``: of all stages' time; shares add up to 1.
    ``std`` and percentiles are None for too few calls."""

    step: str
    total: Duration
    count: Count
    avg: Duration
    std: Duration | None
    min: Duration
    max: Duration
    share: Amount
    p50: Duration | None
    p90: Duration | None
    p99: Duration | None


class GpuBusy(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The time with at least one running kernel, and its share of the run; without ``available``
    there is only the ``reason``."""

    available: bool
    reason: str | None = None
    kernels: Count | None = None
    busy_s: Duration | None = None
    busy_share: Amount | None = None


@dataclass(frozen=True, slots=True)
class DependencyRow:
    """One name of the dependency table: its share of the run and its seconds on the critical path,
    and the seconds that it waited off the path."""

    name: str
    share: float
    critical_path_s: Duration
    waiting_s: Duration


@dataclass(frozen=True, slots=True)
class CallRow:
    """A call of CUDA, a kernel or a copy in one ``phase`` (start-up, steady state, tear-down): its
    share of the phase's critical path and its seconds on it, and the seconds that it waited for the
    GPU, on the path or off it."""

    phase: str
    name: str
    share: float
    critical_path_s: Duration
    waiting_s: Duration


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """One run of a recording. ``ranges``: all of them. ``open_ranges``: cut off by the recording's
    end, and left out. ``outside``: no run, but what lies outside of the runs of a process."""

    process: Count
    program: str | None
    frames: Count
    seconds: Duration
    ranges: Count
    open_ranges: Count
    outside: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NsysDocument:
    """The facts of an nsys recording, under a session's names. ``waits``: thread ->
    what it waited for -> seconds. ``blocked``: stage -> system call -> seconds inside it, longest
    first. ``calls``: the dependency table by call of CUDA; empty where the recording has none.
    ``loop_is_known``: the recording says how large the loop's queues were. ``run``: which of
    the ``runs`` of the recording this is, counted from 1."""

    schema: int = SCHEMA
    run: Count
    runs: Sequence[RecordedRun]
    stages: Sequence[StepRow]
    waits: Mapping[str, Mapping[str, Duration]]
    blocked: Mapping[str, Mapping[str, Duration]]
    critical_path: CriticalPathFacts | None
    dependency: Sequence[DependencyRow]
    calls: Sequence[CallRow] = ()
    loop: LoopSizes
    loop_is_known: bool
    gpu: GpuBusy


# A run and its passes


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileHeader:
    """The part before the passes. ``overhead``: pass -> its time a frame over the plain run's,
    for passes that ran the pipeline. ``undisturbed``: pass -> why it caused no slowdown.
    ``not_available``: pass -> why it could not run. ``ran``: pass -> what it measured, compared
    with ``engine`` and ``precision`` of the run: "openvino int8, as the run"."""

    schema: int = PROFILE_SCHEMA
    session: str
    model: str
    engine: str
    precision: str
    frames: FrameCounts
    fps: Rates
    verdict: Verdict
    overhead: Mapping[str, float]
    undisturbed: Mapping[str, str]
    not_available: Mapping[str, str | None]
    ran: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileDocument(ProfileHeader):
    """``passes``: by name. In the document each is a key of its own, next to the header's."""

    passes: Mapping[str, PassRecord]

    def as_builtins(self) -> dict[str, Any]:
        document: dict[str, Any] = {
            one.name: to_builtins(getattr(self, one.name)) for one in fields(ProfileHeader)
        }
        for name, record in self.passes.items():
            document[OTHER_NAMES.get(name, name)] = record.as_builtins()
        peaks = document.get("roofline", {}).get("peaks", {})
        peaks |= peaks.get("gflops_s", {})  # by precision too, as the rows name it
        return document


def profile_schema() -> dict[str, Any]:
    """Return the JSON Schema of ``profile --json``. Passes that did not run have no key."""
    header = json_schema(ProfileHeader)
    passes = {name: pass_schema(name) for name in FACTS}
    definitions = dict(header["$defs"])
    for schema in passes.values():
        definitions |= schema.pop("$defs")
    properties = {OTHER_NAMES.get(name, name): schema for name, schema in passes.items()}
    return {"$ref": header["$ref"], "properties": properties, "$defs": definitions}
