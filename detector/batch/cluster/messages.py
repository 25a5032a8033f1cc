"""What travels between a job, the process that speaks to Ray, and the workers on their nodes.

All of it is text: names, paths, settings, records. Frames and detections never travel, and neither
do credentials: each worker has those of its own environment.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from detector.core.session import codec

ORIGIN = "a message of the cluster"
NO_MEMORY = "Ray ended it because the memory of its node ran low"
NOT_INSTALLED = "detect-video is not installed on the node, or is an older one"

# ---- to and from the process that speaks to Ray


@dataclass(frozen=True, slots=True, kw_only=True)
class Connect:
    """The first order. ``address``: of a cluster; None starts Ray on this machine, with ``cores``
    of it, and with its files in ``folder``."""

    address: str | None
    cores: int
    folder: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Connected:
    """``error``: why there is no connection; the process has then ended."""

    error: str = ""
    exit_code: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NewActor:
    """``cpus``, ``gpus``: that Ray sets aside for it. ``avoid``: nodes on which it must not be."""

    number: int
    cpus: int
    gpus: int = 0
    avoid: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """``text``: a message to the actor (below), or nothing."""

    number: int
    method: str
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """``ends``: actors that are killed. They come first, then new ones, then calls. ``wait``:
    seconds for the first answer."""

    wait: float
    ends: list[int] = field(default_factory=list)
    places: list[NewActor] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What came of a call: its text, or why the actor is ``lost``."""

    number: int
    text: str = ""
    lost: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node that is alive, and all that it has, whoever uses it."""

    id: str
    host: str
    cpus: float
    gpus: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Turned:
    """``silent_s``: since the cluster's head last told which nodes there are."""

    replies: list[Reply]
    nodes: list[Node]
    silent_s: float


# ---- to and from an actor


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """What a node must see. ``token_file`` in ``place`` holds ``token``; empty where the place is
    no folder. ``paths``: sources and models that are there on the job's machine. ``addresses``:
    sources in stores and on servers, one of each."""

    place: str
    token_file: str = ""
    token: str = ""
    paths: list[str] = field(default_factory=list)
    addresses: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """``version``: of detect-video. ``sees``: the job's OUT is there, and can be written.
    ``barred``: of what lies in stores, what the node does not get at, and why."""

    version: str
    host: str
    node: str
    sees: bool = False
    unseen: list[str] = field(default_factory=list)
    barred: dict[str, str] = field(default_factory=dict)
    gathers: bool = False  # pyarrow is installed


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """``cores``: that the worker has. ``node_cpus``: that Ray knows of its node."""

    config: dict[str, dict[str, Any]]
    place: str
    pictures: list[str]
    resolves: bool
    gathers: bool
    cores: int
    node_cpus: float
    item_timeout: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """``facts``: of settings.LoadedFacts; None where it could not be loaded."""

    facts: dict[str, Any] | None = None
    error: str = ""
    exit_code: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """``config``: the settings in force, without ``auto``. ``digest``: of them and the model."""

    config: dict[str, dict[str, Any]]
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Happened:
    """``event``: of the class of pool.py that ``kind`` names."""

    kind: str
    event: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """``state``: of WorkerState. ``starts``: processes that the worker took so far."""

    state: str
    frames: int
    starts: int
    events: list[Happened] = field(default_factory=list)


def to_text(message: Any) -> str:
    """One line."""
    return json.dumps(codec.to_builtins(message))
