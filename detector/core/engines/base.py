"""The contract of an engine, which runs a graph and returns float32 arrays.

An engine's class can be inspected without its library. ``Engine(network, options)`` imports the
library and compiles the graph. An engine never resizes, decodes, draws, prints or reads a clock.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from detector.core.errors import DetectVideoError, EngineError, UsageError
from detector.core.errors.machine import usable_cores

if TYPE_CHECKING:  # ``--help`` lists the engines and should not wait for an import of numpy
    import numpy as np
    from numpy.typing import NDArray

    from detector.core.models.base import Network

PRECISIONS = ("fp32", "tf32", "bf16", "fp16", "int8")
NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")  # exists if NVIDIA's driver is loaded
NONE: Mapping[str, Any] = MappingProxyType({})

BuildProgress = Callable[[str, int, int], bool]
"""(name of the phase, steps done, steps in all) -> whether to continue."""


class RawRequest:
    """A request for one batch. ``slot``: writable u8 RGB [B, H, W, 3]; the caller fills pictures
    0..n-1. ``device_ms``: the device's time for the last ``infer``, including upload and download;
    None if the device does not report it."""

    slot: NDArray[np.uint8]
    device_ms: float | None = None

    def infer(self, n: int) -> list[NDArray[np.float32]]:
        """Run the batch and return one float32 array per output, each for the first n pictures.

        Blocks with the GIL released. The arrays are valid until this request's next ``infer``. A
        partial batch (n < B) takes as long as a full batch, since all B pictures are inferred.
        """
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Options for any engine. If ``threads`` or ``concurrency`` is 0, the engine chooses it.

    ``precision``: the requested one; the network's graph is already made for it. ``device``:
    "auto", or one of ``Engine.devices``, with ":N" for the Nth GPU. ``artefact``: the file that
    ``Engine.artefact`` built. ``own``: options of this engine only (``Engine.own_options``).
    """

    batch: int = 1
    requests: int = 2
    threads: int = 0
    concurrency: int = 0
    precision: str = "fp32"
    device: str = "auto"
    device_memory: str = "auto"
    artefact: str | None = None
    own: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LayerExecution:
    """A layer as the engine ran it. ``precision``: one of ``PRECISIONS``, or u8, int32 and so on.
    ``nodes``: the graph's nodes that were fused into the layer, or () if the layer is a single
    node of the same name. ``view``: whether the layer copies no data."""

    name: str
    type: str
    precision: str
    median_ms: float | None = None
    nodes: tuple[str, ...] = ()
    view: bool = False


class LayerProfiler(Protocol):
    def run(self, slot: NDArray[np.uint8]) -> None:
        """Run one forward pass on pictures u8 RGB [B, H, W, 3]."""

    def times(self) -> Sequence[tuple[LayerExecution, Sequence[float]]]:
        """Return every layer with the milliseconds of each run so far. Call it once."""

    def close(self) -> None: ...


class ArtefactBuilder:
    """Builds the file that an engine runs instead of the graph. ``suffix``: the file's suffix."""

    suffix: ClassVar[str]

    def is_wanted(self, options: EngineOptions) -> bool:
        """Return whether these options need a built file; otherwise the engine runs the graph."""
        return True

    def key(self, network: Network, options: EngineOptions) -> dict[str, Any]:
        """Return all facts that the file depends on, such as the library's version, as JSON."""
        raise NotImplementedError

    def build(
        self, network: Network, options: EngineOptions, target: Path, progress: BuildProgress
    ) -> Mapping[str, Any]:
        """Write the file to ``target`` and return facts for its manifest. Raises EngineError."""
        raise NotImplementedError

    def covers(self, built: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
        """Return whether a file for the key ``built`` also serves the key ``wanted``."""
        return built == wanted


class Offer(NamedTuple):
    """A device or provider that a library lists. ``option`` selects it. ``name``: its full name, or
    the reason why it cannot be used."""

    option: str
    name: str
    usable: bool = True
    precisions: tuple[str, ...] = ()


class Engine:
    """The base class of engines. An open engine runs one network; its ``requests`` infer batches.

    The caller fills a request's ``slot``, u8 RGB [B, H, W, 3], and ``infer`` returns the graph's
    outputs, float32. ``refusal``, ``best_concurrency``, ``start`` and ``layer_profiler`` may import
    the library. ``library``, ``auto``, ``gain`` and ``model_*`` must be literals on one line, since
    runs with other engines read them from the source text. Raises EngineError and UsageError.

        >>> from detector.core import engines, models
        >>> network = models.open_network(models.ModelRequest("street"))
        >>> request = engines.open("null", network).requests[0]
        >>> request.slot.shape, [output.shape for output in request.infer(1)]
        ((1, 352, 608, 3), [(1, 7, 44, 76), (1, 7, 22, 38), (1, 7, 11, 19)])
    """

    # ---- Facts about the engine
    name: ClassVar[str]
    """The name for ``--engine``, which is also the name of the file."""
    library: ClassVar[str | None] = None
    """The module that must be importable; None if the engine needs no library."""
    install: ClassVar[str] = ""
    """The command that installs the library."""
    gain: ClassVar[str] = ""
    """The measured gain for runs on a CPU (docs/performance.md); "" if there is none."""
    auto: ClassVar[tuple[int, str]] = (0, "")
    """(rank in ``--engine auto``, reason for the user). The highest rank above 0 is chosen."""
    auto_in: ClassVar[Mapping[str, tuple[int, str]]] = NONE
    """Precision other than fp32 -> (rank, reason) that replaces ``auto``."""
    precisions: ClassVar[Mapping[str, str]]
    """Precision -> the kind of graph that the engine needs. fp32: as the front end made it; fp16
    and bf16: converted; int8-u8 and int8-s8: with Q/DQ nodes, for activations in asymmetric u8 or
    symmetric s8."""
    precisions_on_cpu: ClassVar[Mapping[str, str]] = NONE
    """Precision -> the kind of graph on a CPU, if it differs from ``precisions``."""
    devices: ClassVar[Sequence[str]] = ("cpu",)
    """Devices that the engine can use: "cpu", "cuda", and Intel's "gpu" and "npu"."""
    own_options: ClassVar[Mapping[str, str]] = NONE
    """Options of this engine only (``--engine-options NAME=VALUE``) -> help text."""
    artefact: ClassVar[ArtefactBuilder | None] = None
    """The builder of the file that the engine runs, if it needs one."""
    builds_anywhere: ClassVar[bool] = False
    """Whether ``artefact`` also builds on a machine that cannot run the file."""
    model_suffixes: ClassVar[Sequence[str]] = ()
    """Suffixes of model files that only this engine reads and runs (``Network.plan``)."""
    model_kind: ClassVar[str] = ""
    """The name of these model files in messages."""
    model_front_end: ClassVar[str] = ""
    """The module whose FRONT_END (``models.base``) reads these model files."""
    not_timed: ClassVar[str] = "it has no profiler of its layers"
    """The reason in messages if there is no ``layer_profiler``."""

    # ---- Facts about an open engine
    requests: Sequence[RawRequest]
    """The requests, as many as the caller asked for; each has its own slot."""
    concurrency: int = 1
    """The number of requests that may run ``infer`` at once, each in its own thread."""
    precision: str = "fp32"
    """The requested precision; ``execution`` returns the precision of each layer."""
    threads: int = 1
    """CPU threads of one request."""
    device: str = "cpu"
    """The device in use: "cpu", "cuda:0", "gpu:1"."""
    device_name: str = ""
    """The device's full name, if the library gives one."""
    notes: Sequence[str] = ()
    """Lines for the user."""

    def __init__(self, network: Network, options: EngineOptions) -> None:
        """Compile the network's graph for ``options.requests``. Raises EngineError, UsageError."""
        raise NotImplementedError

    @classmethod
    def absent(cls) -> str | None:
        """Return why the engine is unusable here even with its library. Imports no library."""
        return None

    @classmethod
    def reads_file(cls, file: str) -> bool:
        return Path(file).suffix.lower() in cls.model_suffixes

    @classmethod
    def refusal(cls, precision: str, device: str) -> str | None:
        return None

    @classmethod
    def offers(cls) -> list[Offer]:
        """Return devices other than the CPU and NVIDIA's GPUs that the library lists here."""
        return []

    @classmethod
    def unused_device(cls) -> str | None:
        """Return a line on a device that ``--device auto`` does not use. Called only for engines
        with a ``gain``. Imports no library."""
        return None

    @classmethod
    def runs_on_gpu(cls, precision: str) -> bool:
        """Return whether ``--device auto`` selects an NVIDIA GPU. May import the library."""
        return False

    @classmethod
    def best_concurrency(cls, options: EngineOptions) -> int:
        """Return how many concurrent requests give the best throughput here."""
        return 1

    @classmethod
    def start(cls, network: Network, options: EngineOptions) -> Engine:
        """Return the open engine. Put long code elsewhere, since every run imports this class."""
        return cls(network, options)

    @classmethod
    def import_library(cls) -> None:
        if cls.library is not None:
            importlib.import_module(cls.library)

    @classmethod
    def layer_profiler(cls, network: Network, options: EngineOptions) -> LayerProfiler:
        """Return a profiler that runs the network with ``options``. Raises EngineError."""
        raise EngineError(f"engine {cls.name}: no layer times: {cls.not_timed}")

    def execution(self) -> list[LayerExecution]:
        """Return the layers with the precision that was executed; empty if that is unknown."""
        return []

    def close(self) -> None:
        """Release everything. May be called twice. Raises EngineError if the device fails."""

    def close_after(self, error: BaseException) -> None:
        """Close because of ``error``. If closing fails too, add that as a note to ``error``."""
        try:
            self.close()
        except Exception as late:
            error.add_note(f"closing engine {self.name} failed as well: {late}")

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> Any:
        if error is None:
            self.close()
        else:
            self.close_after(error)


def check_contract(
    engine: str, network: Network, inputs: list[tuple[str, Any]], outputs: list[tuple[str, Any]]
) -> None:
    """Raise EngineError if ``inputs`` or ``outputs`` differ from the network's: the engine might
    write past the end of our arrays. Each entry is (name of the type, shape)."""
    wanted_inputs = [("uint8", network.input_shape)]
    wanted_outputs = [("float32", tuple(shape)) for shape in network.output_shapes]
    if inputs != wanted_inputs or outputs != wanted_outputs:
        raise EngineError(
            f"engine {engine}: the graph of {network.name} takes {inputs} and gives {outputs}; "
            f"expected {wanted_inputs} and {wanted_outputs}"
        )


SWITCHES = dict.fromkeys(("1", "true", "yes", "on"), True)
SWITCHES |= dict.fromkeys(("0", "false", "no", "off"), False)


def read_switch(own: Mapping[str, str], name: str, default: bool) -> bool:
    """Parse a switch of ``--engine-options``. Raises UsageError."""
    if name not in own:
        return default
    if own[name].lower() not in SWITCHES:
        raise UsageError(f"--engine-options {name}={own[name]}: give 1 or 0")
    return SWITCHES[own[name].lower()]


# Parts of errors that do not help users: OpenVINO's source lines and ONNX Runtime's codes.
SOURCE_PLACES = re.compile(r"Exception from \S+:\d+: |\[ONNXRuntimeError\] : \d+ : \w+ : ")


@contextmanager
def translated(engine: str, doing: str) -> Iterator[None]:
    """Turn errors that an engine's library raises into a one-line EngineError."""
    try:
        yield
    except DetectVideoError:
        raise
    except Exception as exc:
        text = SOURCE_PLACES.sub("", " ".join(str(exc).split()))
        raise EngineError(f"engine {engine}: failed to {doing}: {text}") from exc


# ---- Shared by several engines: threads, streams, and which layers stay in fp32


def cpu_threads(options: EngineOptions, concurrency: int = 0) -> int:
    """Return the CPU threads of a request: as many as the user wants, or its share of the cores."""
    return options.threads or max(1, usable_cores() // max(1, concurrency or options.concurrency))


MAX_STREAMS = 8


def best_streams(options: EngineOptions) -> int:
    """Return how many requests fill the cores, at most 8. More requests are faster than more
    threads per request, because threads wait for each other at every layer (docs/settings.md)."""
    return min(MAX_STREAMS, max(1, usable_cores() // max(1, options.threads)))


# An option of engines that convert a graph to bf16 themselves, with its help text.
BF16_OPTION = {
    "bf16": "mixed (default): layers that bf16 hurts most stay fp32; all: every layer in bf16, "
    "faster but less exact"
}


def find_fp32_nodes(network: Network, options: EngineOptions) -> set[str]:
    """Return the nodes that an engine with ``BF16_OPTION`` keeps in float32 if it runs bf16."""
    chosen = options.own.get("bf16", "mixed")
    if chosen not in ("mixed", "all"):
        raise UsageError(f"--engine-options bf16={chosen}: give mixed or all")
    if options.precision != "bf16" or chosen == "all":
        return set()
    if network.sensitive is not None:
        return network.sensitive
    from detector.core.models.graph.halves import sensitive_nodes

    return sensitive_nodes(network.graph)
