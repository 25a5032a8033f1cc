"""Read plan files, and keep the log in which TensorRT reports why it refuses a plan.

A plan of TensorRT begins with "ftrt", a plan of TensorRT for RTX with "vtrt". In a file of
Ultralytics, a JSON header precedes the plan: its length as a little-endian int32, then the JSON.
"""

from __future__ import annotations

import json
import re
from collections import deque
from typing import Any

from detector.core.engines.trt.driver import Gpu
from detector.core.engines.trt.edition import EDITIONS, Edition
from detector.core.models.layouts.plans import PlanTensor

HEAD_BYTES = 4
KEPT = 40  # a log keeps this many errors, and as many warnings
WARNINGS = 5  # a build shows the user at most this many warnings
SOURCE_LINE = re.compile(r"^\S+\.cpp:\d+: ")  # prefix of the parser's warnings
# Warnings about an empty input of Resize, and about a second logger in the process.
HARMLESS = re.compile("Empty initializer|The logger passed into")


def make_log(trt: Any) -> Any:
    class KeptLog(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self._errors: deque[str] = deque(maxlen=KEPT)
            self._warnings: dict[str, None] = {}

        def log(self, severity: Any, msg: str) -> None:
            text, kind = " ".join(str(msg).split()), trt.ILogger.Severity
            if int(severity) <= int(kind.ERROR):
                self._errors.append(text)
            elif int(severity) > int(kind.WARNING) or HARMLESS.search(text):
                return
            elif len(self._warnings) < KEPT:
                self._warnings[SOURCE_LINE.sub("", text)] = None

        def reason(self) -> str:
            """Return the errors since the last call. The first error is usually the cause."""
            errors = dict.fromkeys(self._errors)
            self._errors.clear()
            return "; ".join(errors) or "TensorRT gave no reason"

        def notes(self) -> list[str]:
            """Return the first warnings, each once, as lines for the user."""
            notes = [f"TensorRT warns: {warning}" for warning in self._warnings]
            more = len(notes) - WARNINGS
            return [*notes[:WARNINGS], *([f"TensorRT: {more} more warnings"] if more > 0 else [])]

    return KeptLog()


# Phrases in TensorRT's log -> text for the user. The first entry with a matching phrase counts.
MEANINGS = (
    (
        ("version tag", "serialization version", "current version"),
        "it was built by another version of TensorRT",
    ),
    (
        ("compute capability", "incompatible device", "current device is not compatible"),
        "it was built for another GPU",
    ),
    (
        ("host code", "host_code", "enginehostcodeallowed"),
        "it contains its own runtime; if you trust the file: --engine-options host_code=1",
    ),
    (
        ("magic", "crc", "checksum", "truncated", "serialization assertion"),
        "it is damaged, or not a plan",
    ),
)


class PlanError(Exception):
    """The file is not a plan, or this TensorRT cannot run it. Callers add the file's name."""


def edition_of(plan: bytes) -> Edition | None:
    """Find out from a plan's first bytes which library built it; None if it is not a plan."""
    return next((edition for edition in EDITIONS if plan[:4] == edition.magic), None)


def edition_of_file(file: str) -> Edition | None:
    try:
        with open(file, "rb") as plan:
            start = plan.read(HEAD_BYTES)
            if edition_of(start) is None:
                plan.seek(4 + max(0, int.from_bytes(start[:4], "little", signed=True)))
                start = plan.read(HEAD_BYTES)
    except OSError:
        return None
    return edition_of(start)


def split(data: bytes) -> tuple[dict[str, Any] | None, bytes]:
    """Return (header, plan); the header is None for a bare plan. Raises PlanError."""
    if edition_of(data) is not None:
        return None, data
    length = int.from_bytes(data[:4], "little", signed=True)
    body = 4 + length
    if not (0 < length < len(data) - 4 and data[4:5] == b"{" and edition_of(data[body : body + 4])):
        prefixes = " or ".join(repr(edition.magic) for edition in EDITIONS)
        raise PlanError(
            f"not a TensorRT plan: it begins with {data[:4]!r}; a plan begins with {prefixes}, or "
            "with a JSON header"
        )
    try:
        header = json.loads(data[4:body])
    except (ValueError, RecursionError) as exc:
        raise PlanError(f"the JSON header in front of the plan is damaged: {exc}") from exc
    return header, data[body:]


def deserialize(
    edition: Edition, plan: bytes, log: Any, gpu: Gpu, host_code: bool = False
) -> tuple[Any, Any]:
    """Return (runtime, ICudaEngine); the runtime must outlive the engine. ``host_code``: whether a
    version-compatible plan may start the runtime that it contains. Raises PlanError."""
    built_by = edition_of(plan)
    if built_by is None:
        raise PlanError(f"not a plan of {edition.title}")
    if built_by is not edition:
        title, engine_name = built_by.title, built_by.engine
        raise PlanError(f"a plan of {title}, not of {edition.title}; use --engine {engine_name}")
    trt = edition.trt
    runtime = trt.Runtime(log)
    if reason := edition.check_plan(runtime, plan, gpu):
        raise PlanError(reason)
    if host_code:
        runtime.engine_host_code_allowed = True
    engine = runtime.deserialize_cuda_engine(plan)
    if engine is None:
        reason = log.reason()
        raise PlanError(f"{edition.title} {trt.__version__} rejects it: {_meaning(reason)}{reason}")
    return runtime, engine


def tensors(trt: Any, engine: Any) -> list[PlanTensor]:
    return [_tensor(trt, engine, engine.get_tensor_name(at)) for at in range(engine.num_io_tensors)]


# The keys are names, since the numbers of enum members changed between TensorRT 10 and 11.
DTYPES = {
    "FLOAT": "float32",
    "HALF": "float16",
    "UINT8": "uint8",
    "INT8": "int8",
    "INT32": "int32",
    "INT64": "int64",
    "BOOL": "bool",
}


def _tensor(trt: Any, engine: Any, name: str) -> PlanTensor:
    is_input = engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT
    dtype = engine.get_tensor_dtype(name).name
    shape = tuple(int(side) for side in engine.get_tensor_shape(name))
    profiles = tuple(
        tuple(
            tuple(int(side) for side in shape)
            for shape in engine.get_tensor_profile_shape(name, at)
        )
        for at in range(engine.num_optimization_profiles if is_input and -1 in shape else 0)
    )
    return PlanTensor(name, is_input, DTYPES.get(dtype, dtype), shape, profiles)


def _meaning(reason: str) -> str:
    text = reason.lower()
    for words, meaning in MEANINGS:
        if any(word in text for word in words):
            return f"{meaning}: "
    return ""
