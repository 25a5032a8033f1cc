"""The documents of ``profile --json``: a run with its passes, and a recording by nsys."""

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
    StageFigures,
    ThreadFigures,
    Verdict,
)
from detector.lab.session.passes import FACTS, CriticalPathFacts, PassRecord, pass_schema

PROFILE_SCHEMA = 2  # in version 1, what_if was a list of predictions
OTHER_NAMES = {"frames": "slowest_frames"}  # since "frames" is already a key of the header (counts)


# A recording


@dataclass(frozen=True, slots=True)
class StepRow:
    """The calls of one stage, in milliseconds. ``share``: share of the time of all stages. ``std``
    and percentiles are None if there are too few calls."""

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
    """``busy_s``: the time with a running kernel. ``busy_share``: its share of the run. ``reason``:
    why the figures are unknown."""

    available: bool
    reason: str | None = None
    kernels: Count | None = None
    busy_s: Duration | None = None
    busy_share: Amount | None = None


@dataclass(frozen=True, slots=True)
class DependencyRow:
    """A row of the dependency table. ``share``: share of the run's time. ``waiting_s``: seconds of
    waiting off the critical path."""

    name: str
    share: float
    critical_path_s: Duration
    waiting_s: Duration


@dataclass(frozen=True, slots=True)
class CallRow:
    """A CUDA call, a kernel or a copy in one ``phase`` (start-up, steady state, tear-down).
    ``share``: share of the phase's critical path. ``waiting_s``: seconds of waiting for the GPU, on
    the path or off it."""

    phase: str
    name: str
    share: float
    critical_path_s: Duration
    waiting_s: Duration


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """One run of a recording. ``open_ranges``: number of ranges omitted because they had no end in
    the recording. ``outside``: True if this is no run, but a process's ranges outside all runs."""

    process: Count
    program: str | None
    frames: Count
    seconds: Duration
    ranges: Count
    open_ranges: Count
    outside: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NsysDocument:
    """The facts of an nsys recording, with the names that sessions use. ``waits``: thread -> what
    the thread waited for -> seconds. ``blocked``: stage -> system call -> seconds, longest first.
    ``calls``: the dependency table by CUDA call; empty if no call was recorded. ``loop_is_known``:
    whether the recording states the loop's queue sizes. ``run``: the number of this run among the
    ``runs`` of the recording, from 1."""

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
    """The part before the passes. ``overhead``: pass -> its time per frame / that of the plain run,
    for passes that ran the pipeline. ``undisturbed``: pass -> why it caused no slowdown.
    ``not_available``: pass -> why it could not run. ``ran``: pass -> the engine and precision that
    it measured, in the run itself or in a new run, such as "openvino int8, like the run".
    ``latency_ms``: percentiles of the time from reading a frame to writing it."""

    schema: int = PROFILE_SCHEMA
    session: str
    model: str
    engine: str
    precision: str
    frames: FrameCounts
    fps: Rates
    verdict: Verdict
    stages: Mapping[str, StageFigures]
    threads: Mapping[str, ThreadFigures]
    latency_ms: Mapping[str, Duration | None]
    overhead: Mapping[str, float]
    undisturbed: Mapping[str, str]
    not_available: Mapping[str, str | None]
    ran: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileDocument(ProfileHeader):
    """``passes``: name -> record. In JSON, each record is a top-level key next to the header's."""

    passes: Mapping[str, PassRecord]

    def as_builtins(self) -> dict[str, Any]:
        document: dict[str, Any] = {
            one.name: to_builtins(getattr(self, one.name)) for one in fields(ProfileHeader)
        }
        for name, record in self.passes.items():
            document[OTHER_NAMES.get(name, name)] = record.as_builtins()
        peaks = document.get("roofline", {}).get("peaks", {})
        peaks |= peaks.get("gflops_s", {})  # also as peaks.fp32, peaks.int8, ...
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
