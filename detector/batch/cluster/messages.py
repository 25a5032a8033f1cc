"""The messages between a job, the process that talks to Ray, and the workers on their nodes. They
contain names, paths, settings and records; never frames, detections or credentials."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from detector.batch.documents import WorkerReport, WorkerState
from detector.batch.item import Task
from detector.batch.pool import Event
from detector.batch.settings import LoadedFacts
from detector.core.session import codec

ORIGIN = "a message of the cluster"


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The order to load a model. ``digest``: digest of settings and model; None until ``auto`` is
    resolved. ``cores``: cores for the worker; ``node_cpus``: cores of its node, as Ray counts them.
    ``place``: OUT. ``folder``: where temporary files go; None means TMPDIR."""

    config: dict[str, dict[str, Any]]
    digest: str | None = None
    place: str
    pictures: list[str]
    resolves: bool
    gathers: bool
    item_timeout: float | None
    folder: str | None = None
    cores: int = 0
    node_cpus: float = 0.0


# ---- between the job and the process that talks to Ray: an Open, then a Turned for every Turn.


@dataclass(frozen=True, slots=True, kw_only=True)
class Open:
    """The first message. If ``address`` is None, Ray is started here, with ``cores`` cores."""

    address: str | None
    cores: int
    folder: str
    workers: int | None
    hello: Hello
    load: Load


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    wait: float
    tasks: list[Task] = field(default_factory=list)
    start: tuple[dict[str, dict[str, Any]], str, int] | None = None
    closes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Turned:
    events: list[Event] = field(default_factory=list)
    states: list[WorkerState] = field(default_factory=list)
    reports: list[WorkerReport] = field(default_factory=list)
    facts: LoadedFacts | None = None
    room: int = 0
    alive: bool = True
    cores: float = 0.0


# ---- between the process that talks to Ray and a worker. Hello and Welcome are sent as JSON text,
# so that a node with another version of this program can read them.


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """What a node needs access to: ``place`` (OUT), and the ``paths`` and ``addresses`` of sources
    and of files in options. ``token_file``: a file in ``place`` that contains ``token``."""

    place: str
    token_file: str = ""
    token: str = ""
    paths: list[str] = field(default_factory=list)
    addresses: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """A node's answer to Hello. ``sees``: whether the node has the job's OUT and can write to it.
    ``unseen``: paths that it lacks. ``barred``: address that it cannot open -> reason."""

    version: str
    host: str
    node: str
    sees: bool = False
    unseen: list[str] = field(default_factory=list)
    barred: dict[str, str] = field(default_factory=dict)
    gathers: bool = False  # whether pyarrow is installed


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    state: str
    frames: int
    starts: int
    events: list[Event]


def to_text(message: Hello | Welcome) -> str:
    return json.dumps(codec.to_builtins(message))
