"""The network and engine of a run, loaded once for all sources: chosen, opened, built if needed,
and warmed up. Libraries are imported late, so that a run can time its imports separately."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from detector.core.config.schema import Config
from detector.core.errors import EngineError, OutputError
from detector.core.run.canvas import open_network
from detector.core.run.limits import check_memory, trim_heap

if TYPE_CHECKING:
    from detector.core.engines.base import BuildProgress, Engine, EngineOptions
    from detector.core.loop.parts import Outputs
    from detector.core.models.base import Network
    from detector.core.run.choose import EngineChoice
    from detector.core.run.reading import SourceReading
    from detector.core.run.shapes import Shapes
    from detector.core.session.outcome import ExecutedLayer, SourceRun
    from detector.core.timeline import Natives


@dataclass(slots=True)
class LoadedModel:
    """A network on a warm engine, shared by all sources of a run."""

    network: Network
    engine: Engine
    engine_reason: str | None  # why this engine; None if the user named it
    notes: list[str]
    build_s: float = 0.0  # building in this run; part of the load
    artefact_s: float = 0.0  # time to build, in this run or an earlier one
    options: EngineOptions | None = None  # what the engine was opened with
    # As the engine ran them: call ``read_layers`` first. Empty if the engine does not report them.
    layers: tuple[ExecutedLayer, ...] = ()
    original: Network | None = None  # before any conversion: layers' costs refer to its nodes
    natives: Natives | None = None  # observes the engine's threads
    tuned: Mapping[str, Any] = field(default_factory=dict)  # options that ``tune --use`` saved
    # The configuration as ``auto`` resolved it (engine, precision, calibration), with ``tuned``.
    config: Config | None = None
    shapes: Shapes | None = None  # with --rect: the inputs of other shapes
    # What ``change_network`` applied to the network; it applies to the other shapes too.
    change: Callable[[Network], Network] = lambda network: network
    closed: bool = False

    def __enter__(self) -> Engine:
        return self.engine

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self.shapes is not None:
            self.shapes.close()
        if not self.closed:
            self.engine.__exit__(kind, error, trace)

    def change_network(self, change: Callable[[Network], Network]) -> None:
        """Change the network (its head) for every input shape."""
        self.network, self.change = change(self.network), change

    def close(self, runs: Sequence[SourceRun]) -> None:
        """Close the engine after its last source. A device's first error is the one reported."""
        from detector.core.engines.base import translated

        failed = any(isinstance(run.error, EngineError) for run in runs)
        # A broken device may raise anything; from a healthy one we expect only our errors.
        with suppress(Exception if failed else EngineError):
            self.read_layers()
            if self.shapes is not None:
                self.shapes.close()
        self.closed = True
        try:
            with translated(self.engine.name, "close"):
                self.engine.close()
        except EngineError as late:
            if failed:
                runs[-1].notes.append(f"closing it also failed: {late}")
            else:
                runs[-1].error = runs[-1].error or late

    def read_layers(self) -> None:
        """Ask the open engine how it runs each layer; it may not tell."""
        if self.layers or self.original is None:
            return
        from detector.core.run.executed import find_layers

        with suppress(EngineError, OutputError):
            own = {} if self.options is None else self.options.own
            self.layers = find_layers(
                self.original, self.engine, self.network.path, own, self.network
            )


class PhaseTimer:
    """Adds up the seconds of each phase of a run, and reports finished phases to ``ended``."""

    def __init__(self, ended: Callable[[str], None] = lambda name: None) -> None:
        self._ended = ended
        self.seconds = dict.fromkeys(("import", "load", "warmup", "run", "close"), 0.0)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] += time.perf_counter() - start
            self._ended(name)


def load_model(
    config: Config,
    timer: PhaseTimer | None = None,
    *,
    spare_requests: int = 0,
    one_at_a_time: bool = False,
    picture: tuple[int, int] | None = None,
    progress: BuildProgress | None = None,
    measured: bool = True,
    timed: bool = False,
    kind: Callable[[], str | None] | None = None,
    ahead: tuple[SourceReading, Sequence[str]] | None = None,
    opened: Callable[[Network], None] = lambda network: None,
    chosen: Callable[[Network, Config], None] = lambda network, config: None,
    natives: Natives | None = None,
) -> LoadedModel:
    """Choose the engine, open the network, build what the engine lacks, and warm it up.

    ``spare_requests``: requests beyond those that a loop needs. ``one_at_a_time``: the caller waits
    for each result, so one request should have all threads. ``picture``: width and height of the
    first source, to which the input is fitted (``canvas.open_network``); None keeps the model's own
    input. ``progress`` receives every step of a build, and ends it by returning False.
    ``measured``, ``timed``, ``kind`` and ``ahead``: what ``auto`` may use (``choose``). ``opened``
    receives the network, and ``chosen`` the network and the configuration without any ``auto``,
    before the slow part; both may refuse. ``natives`` observes the threads of the run. Raises
    UsageError, ModelError, EngineError.
    """
    timer = timer or PhaseTimer()
    with timer.phase("import"):
        from detector.core import engines
        from detector.core.run.choose import choose
        from detector.core.run.prepare import prepare_network, silent
        from detector.core.timeline import INFER, Natives

        config, reason = _with_engine_of_the_file(config)
        asked = config.runtime.engine
        own = engines.only_engine(config.network.model) == asked and engines.is_installed(asked)
        # a file of the engine's own format has a front end that states its needs
        if asked != "auto" and not own:
            engines.check_installed(asked)
    with timer.phase("load"):
        network = open_network(config, picture)
        opened(network)
        choice = choose(
            network,
            config,
            measured=measured,
            timed=timed,
            kind=kind,
            ahead=ahead,
            progress=progress or silent,
        )
        config = choice.config
        if "batch" in choice.tuned:  # it is part of the graph
            network = open_network(config, picture)
    timer.seconds["load"] -= choice.timed_s  # not part of this run's figures
    name = config.runtime.engine
    check_memory(name)
    chosen(network, config)
    with timer.phase("import"):
        engines.load_library(name)
    with timer.phase("load"):
        # The same number of spare requests for both loops. --sync runs one request at a time and
        # gives it all threads.
        spare = config.loop.queue_batches + 1 + spare_requests
        ready = prepare_network(
            network,
            name,
            config,
            lambda concurrency: concurrency + spare,
            progress or silent,
            one_at_a_time,
        )
        natives = natives or Natives()
        with natives.book_threads(INFER):
            engine = engines.open(name, ready.network, ready.options)
        trim_heap()
    with timer.phase("warmup"), natives.book_threads(INFER):
        # On a CPU requests share what the first inference sets up, so it is enough to warm as many
        # as run at once: each costs a frame's time. On a GPU each has its own context.
        alike = engine.device == "cpu"
        warm = engine.requests[: engine.concurrency] if alike else engine.requests
        first, *_ = [request.infer(network.batch) for request in warm]
    loaded = LoadedModel(
        ready.network,
        engine,
        reason or choice.reason,
        [
            *choice.notes,
            *network.warnings,
            *ready.notes,
            *engine.notes,
            *_nan_warning(network, first),
        ],
        ready.build_s,
        ready.artefact_s,
        ready.options,
        natives=natives,
        tuned=choice.tuned,
        original=network,
        config=config,
    )
    if config.runtime.rect:
        from detector.core.run.shapes import Shapes

        def load_other(config: Config) -> LoadedModel:
            return load_model(
                config, spare_requests=spare_requests, one_at_a_time=one_at_a_time, natives=natives
            )

        loaded.shapes = Shapes(loaded, config, load_other)
    return loaded


def choose_as_a_run(config: Config, picture: tuple[int, int] | None = None) -> EngineChoice:
    """Return a run's choice for ``auto``: engine, precision and calibration."""
    from detector.core.run.choose import choose

    config, _ = _with_engine_of_the_file(config)
    return choose(open_network(config, picture), config, timed=True)


def _nan_warning(network: Network, outputs: Outputs) -> list[str]:
    """Return a warning if the network's numbers overflow, or are NaN: it detects nothing."""
    import numpy as np

    if not any(np.isnan(output).any() for output in outputs):
        return []
    return [
        f"{network.name} outputs NaN, so it misses objects: its weights are "
        "damaged, or too large for this precision; train it again, or use --precision fp32"
    ]


def _with_engine_of_the_file(config: Config) -> tuple[Config, str | None]:
    """Set ``--engine auto`` to the only engine for this file (a TensorRT plan); return why."""
    from detector.core import engines

    asked, model = config.runtime.engine, config.network.model
    only = engines.only_engine(model)
    if only is None or asked == only:
        return config, None
    if asked == "auto":
        runtime = replace(config.runtime, engine=only)
        return replace(config, runtime=runtime), f"engine {only}: the only one that runs {model}"
    if asked in engines.names():
        raise EngineError(engines.plan_refusal(asked, model))
    return config, None  # unknown engine: loading it reports the error
