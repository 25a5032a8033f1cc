"""Load the network and engine of a run once for all sources: choose, open, build if needed, and
warm up. Libraries are imported late, so that a run can time its imports separately."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
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
    from detector.core.timeline.native import Natives


@dataclass(slots=True)
class LoadedModel:
    """A network on a warm engine, used for all sources of a run."""

    network: Network
    engine: Engine
    engine_reason: str | None  # why the engine was chosen; None if the user named it
    notes: list[str]
    build_s: float = 0.0  # seconds that this run spent building, which are part of "load"
    artefact_s: float = 0.0  # the same, plus the build time of files from earlier runs
    options: EngineOptions | None = None  # options with which the engine was opened
    # Set by ``read_layers``; empty if the engine does not report its layers.
    layers: tuple[ExecutedLayer, ...] = ()
    original: Network | None = None  # network before any conversion, for the costs of layers
    natives: Natives | None = None  # observes the engine's threads
    tuned: Mapping[str, Any] = field(default_factory=dict)  # options that ``tune --use`` saved
    # The configuration with the chosen engine, precision and calibration, and the tuned options.
    config: Config | None = None
    shapes: Shapes | None = None  # with --rect: the inputs of other shapes
    # The function given to ``change_network``. It must also change networks of other shapes.
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
        """Apply ``change``, which replaces the head, to the networks of all input shapes."""
        self.network, self.change = change(self.network), change

    def close(self, runs: Sequence[SourceRun]) -> None:
        """Close the engine after its last source. If that fails, too, an earlier error is kept."""
        from detector.core.engines.base import translated

        failed = any(isinstance(run.error, EngineError) for run in runs)
        # After the engine has failed, its device may raise any error here, not only EngineErrors.
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
                runs[-1].notes.append(f"closing the engine also failed: {late}")
            else:
                runs[-1].error = runs[-1].error or late

    def read_layers(self) -> None:
        """Read from the open engine which layers it ran, if it reports them."""
        if self.layers or self.original is None:
            return
        from detector.core.run.executed import find_layers

        with suppress(EngineError, OutputError):
            own = {} if self.options is None else self.options.own
            self.layers = find_layers(
                self.original, self.engine, self.network.path, own, self.network
            )


class PhaseTimer:
    """Adds up the seconds of each phase of a run, and calls ``ended`` with each finished phase."""

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
    first source, to which ``canvas.open_network`` fits the input; None keeps the model's own input.
    ``progress`` is called at every step of a build, and stops the build by returning False.
    ``measured``, ``timed``, ``kind``, ``ahead``: see ``choose``. Before the slow part, ``opened``
    is called with the network, then ``chosen`` with the network and the configuration, in which
    nothing is ``auto`` any more. Both may raise errors. ``natives`` observes the threads of the
    run. Raises UsageError, ModelError, EngineError.
    """
    timer = timer or PhaseTimer()
    with timer.phase("import"):
        from detector.core import engines
        from detector.core.run.choose import choose
        from detector.core.run.prepare import ignore_progress, prepare_network
        from detector.core.timeline.native import Natives
        from detector.core.timeline.spans import INFER

        config, reason = _set_only_engine(config)
        requested = config.runtime.engine
        own = engines.only_engine(config.network.model) == requested and engines.is_installed(
            requested
        )
        # The code that reads an engine's own files, such as plans, reports a missing library.
        if requested != "auto" and not own:
            engines.check_installed(requested)
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
            progress=progress or ignore_progress,
        )
        config = choice.config
        if "batch" in choice.tuned:  # the graph depends on the batch
            network = open_network(config, picture)
    timer.seconds["load"] -= choice.timed_s  # exclude the self-timing from this run's figures
    name = config.runtime.engine
    check_memory(name)
    chosen(network, config)
    with timer.phase("import"):
        engines.load_library(name)
    with timer.phase("load"):
        # There are spare requests even with --sync, which runs one at a time, with all threads.
        spare = config.loop.queue_batches + 1 + spare_requests
        prepared = prepare_network(
            network,
            name,
            config,
            lambda concurrency: concurrency + spare,
            progress or ignore_progress,
            one_at_a_time,
        )
        natives = natives or Natives()
        with natives.book_threads(INFER):
            engine = engines.open(name, prepared.network, prepared.options)
        trim_heap()
    with timer.phase("warmup"), natives.book_threads(INFER):
        # Warming up a request takes as long as a frame. On a CPU, requests share what the first one
        # sets up, so we warm only as many as run at once. On a GPU, each has its own context.
        is_shared = engine.device == "cpu"
        warm = engine.requests[: engine.concurrency] if is_shared else engine.requests
        first, *_ = [request.infer(network.batch) for request in warm]
    loaded = LoadedModel(
        prepared.network,
        engine,
        reason or choice.reason,
        [
            *choice.notes,
            *network.warnings,
            *prepared.notes,
            *engine.notes,
            *_warn_of_nan(network, first),
        ],
        prepared.build_s,
        prepared.artefact_s,
        prepared.options,
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

    config, _ = _set_only_engine(config)
    return choose(open_network(config, picture), config, timed=True)


def _warn_of_nan(network: Network, outputs: Outputs) -> list[str]:
    import numpy as np

    if not any(np.isnan(output).any() for output in outputs):
        return []
    return [
        f"{network.name} outputs NaN, so it misses objects: its weights are "
        "damaged, or too large for this precision; train it again, or use --precision fp32"
    ]


def _set_only_engine(config: Config) -> tuple[Config, str | None]:
    """Replace ``auto`` if only one engine runs this file (a plan, say). Return the reason, too."""
    from detector.core import engines

    requested, model = config.runtime.engine, config.network.model
    only = engines.only_engine(model)
    if only is None or requested == only:
        return config, None
    if requested == "auto":
        reason = f"engine {only}: the only one that runs {model}"
        return config.with_options({"engine": only}), reason
    if requested in engines.names():
        raise EngineError(engines.plan_refusal(requested, model))
    return config, None  # the engine is unknown, and loading it will report the error
