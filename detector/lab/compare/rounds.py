"""Run variants, each in its own process, in turns for several rounds. Each round has a new
random order, as ``analysis.statistics`` requires."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from statistics import median

from detector.core.analysis.agreement import agreement
from detector.core.config.schema import Config
from detector.core.engines._ranking import choose_by_rank
from detector.core.errors import SourceError
from detector.core.errors.text import counted
from detector.core.errors.writing import temporary_folder
from detector.core.run.prepare import own_options
from detector.core.run.tiling import Tiling
from detector.core.types import Detections
from detector.lab.analysis.compare import (
    RoundsLook,
    Variant,
    compare_variants,
    is_decided,
    label,
    place_on_roof,
)
from detector.lab.analysis.statistics import LOOKS, share_of_look
from detector.lab.compare.judging import JudgedData
from detector.lab.compare.labels import Labels
from detector.lab.compare.worker import (
    Command,
    Digests,
    Judgement,
    Kind,
    MappedClasses,
    Process,
    VariantOpening,
    read_detections,
)
from detector.lab.peaks import PeakSetup, find_peaks
from detector.lab.session.comparison import About, Comparison, Round, VariantFacts
from detector.lab.session.network import Peaks

ROUND = Command("round")
FRAMES = 60  # default frames of a round: two seconds at 30 FPS
FP32_OF_EACH = "fp32 of the same model"
Watch = Callable[[str, int, int], object]  # called with a step, its number and the number of steps


@dataclass(frozen=True, slots=True)
class Rounds:
    """A plan to compare every engine with every precision, batch size and model.

    ``rounds``: how often each variant is timed. None: until each is known to be faster, slower or
    equal, or ``seconds`` have passed. ``usual``: the engine and precision that ``detect`` would
    choose; they get a row, too. ``dice``: the random generator for the order.
    """

    source: str
    config: Config
    engines: Sequence[str]
    precisions: Sequence[str]
    batches: Sequence[int]
    rounds: int | None
    labels: Labels | None = None
    models: Sequence[str] = ()
    dataset: JudgedData | None = None
    usual: tuple[str, str] | None = None
    why_usual: str | None = None
    seconds: float = 300.0
    dice: random.Random = field(default_factory=random.Random)

    @property
    def most_rounds(self) -> int:
        return LOOKS[-1] if self.rounds is None else self.rounds

    def variants(self) -> list[Variant]:
        variants: list[Variant] = []
        models: Sequence[str | None] = self.models or (None,)
        choices = [*product(models, self.engines, self.precisions, self.batches)]
        if self.usual and all(self.usual != (engine, kind) for _, engine, kind, _ in choices):
            choices.append((None, *self.usual, self.batches[0]))
        for model, engine, precision, batch in choices:
            name = label(engine, precision, batch, model)
            known = [label(one.engine, one.precision, one.batch, one.model) for one in variants]
            duplicates = known.count(name)
            unique = f"{name} #{duplicates + 1}" if duplicates else name
            variants.append(Variant(engine, precision, batch, unique, model=model))
        return variants


def compare(plan: Rounds, watch: Watch) -> tuple[Comparison, list[Variant]]:
    """Run the plan; return the document, and the variants with their raw rounds. A failed variant
    has an ``error``. Raises SourceError or UsageError if the labels do not fit."""
    variants = plan.variants()
    judged = (plan.labels is not None) + (plan.dataset is not None)
    turns = len(variants) + (plan.rounds is None)  # one more for the baseline's twin (_open_twin)
    steps = len(variants) * (2 + judged) + turns * plan.most_rounds + bool(plan.models)
    done = 0

    def step(text: str) -> None:
        nonlocal done
        watch(text, done, steps)
        done += 1

    with _start_workers() as workers:
        for at, variant in enumerate(variants):
            step(f"open {variant.name}")
            workers.open(at, variant, plan)
            if plan.labels is not None and variant.facts is not None:
                plan.labels.bind(variant.facts.class_names)  # raises before more models are loaded
        groups: dict[str | None, list[tuple[int, Variant]]] = {}
        for at, variant in enumerate(variants):
            groups.setdefault(variant.model, []).append((at, variant))
        references = [_check_all(workers, group, plan, step) for group in groups.values()]
        look = take_rounds(workers, variants, plan, step)
        for at, variant in enumerate(variants) if plan.labels is not None else ():
            step(f"judge {variant.name}")
            if variant.error is None and plan.labels is not None:
                _judge(workers, at, variant, plan.labels)
        if plan.models:
            step("this computer's peaks")
            _place_on_roofs(variants, plan)
    # The workers have ended, so they do not disturb the runs on the dataset.
    for variant in variants if plan.dataset is not None else ():
        step(f"judge {variant.name}")
        if variant.error is None and plan.dataset is not None:
            plan.dataset.judge(variant, _make_config(plan, variant), plan.source)
    watch("done", steps, steps)
    reference = references[0] if len(references) == 1 else FP32_OF_EACH
    return compare_variants(variants, _describe_shared(plan, variants, reference), look), variants


def take_rounds(
    workers: Workers, variants: Sequence[Variant], plan: Rounds, step: Callable[[str], None]
) -> RoundsLook:
    turns = list(enumerate(variants))
    twin = _open_twin(workers, variants, plan) if plan.rounds is None else None
    if twin is not None:
        turns.append((len(variants), twin))
    start, done = time.monotonic(), 0
    while True:
        done += 1
        for at, variant in plan.dice.sample(turns, len(turns)):
            step(f"round {done} of {plan.most_rounds}: {variant.name}")
            if variant.error is None and (answer := workers.request(at, variant, ROUND, Round)):
                variant.rounds.append(answer)
        if plan.rounds is not None:
            if done >= plan.rounds:
                return RoundsLook()
            continue
        late = (time.monotonic() - start) * (done + 1) / done > plan.seconds
        stopped = "most" if done == plan.most_rounds else "time" if late else "decided"
        share = share_of_look(done, stopped != "decided")
        look = RoundsLook(share, stopped, twin if twin is not None and twin.error is None else None)
        if share and (
            stopped != "decided"
            or is_decided(compare_variants(variants, _describe_shared(plan, variants, None), look))
        ):
            return look


def run_in_turns(
    source: str,
    configs: Sequence[Config],
    opens: Callable[[int], bool],
    stays: Callable[[Sequence[Variant], Sequence[list[Detections]]], Collection[int]],
) -> tuple[list[Variant], list[list[Detections]]]:
    """Run configurations in turns; return the variants, and their detections in the first round.
    Open them in order until ``opens`` returns False. ``stays`` gives the indexes to run again."""
    variants = [
        Variant(one.runtime.engine, one.runtime.precision, one.runtime.batch) for one in configs
    ]
    detections: list[list[Detections]] = [[] for _ in configs]
    dice = random.Random()
    with _start_workers() as workers:
        running: list[int] = []
        for at, variant in enumerate(variants):
            if not opens(at):
                break
            workers.open_as(at, variant, source, configs[at])
            if variant.error is None:
                running.append(at)
        while running:
            for at in dice.sample(running, len(running)):
                keeps = not variants[at].rounds
                answer = workers.request(at, variants[at], Command("round", keeps=keeps), Round)
                if answer is None:
                    running.remove(at)
                    continue
                variants[at].rounds.append(answer)
                if answer.detections is not None:
                    detections[at] = read_detections(answer.detections)
            staying = stays(variants, detections)
            for at in {*running} - {*staying}:
                workers.close(at)
            running = [at for at in running if at in staying]
    return variants, detections


def _open_twin(workers: Workers, variants: Sequence[Variant], plan: Rounds) -> Variant | None:
    """Open the baseline again, as a twin. Differences between baseline and twin are noise."""
    base = next((one for one in variants if one.error is None), None)
    if base is None:
        return None
    twin = Variant(
        base.engine, base.precision, base.batch, f"{base.name} (again)", model=base.model
    )
    workers.open(len(variants), twin, plan)
    return twin


def _place_on_roofs(variants: Sequence[Variant], plan: Rounds) -> None:
    """Compare the rate of each variant on the CPU with the measured peaks."""
    known: dict[tuple[str, str, int], Peaks] = {}
    for variant in variants:
        facts, rates = variant.facts, [turn.fps["inference"] for turn in variant.rounds]
        measured = [rate for rate in rates if rate]
        if variant.error is not None or facts is None or facts.device != "cpu" or not measured:
            continue
        cores = (facts.threads or 1) * (facts.concurrency or 1)
        key = variant.engine, variant.precision, cores
        if not facts.computes:
            continue
        if key not in known:
            known[key] = find_peaks(PeakSetup(*key, own_options(plan.config)), plan.config)
        inputs = Tiling.of(plan.config).inputs  # network inputs per frame
        variant.roof = place_on_roof(
            facts.layers, variant.batch, inputs * median(measured), known[key]
        )


class Workers:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.children: dict[int, Process] = {}

    def open(self, at: int, variant: Variant, plan: Rounds) -> None:
        self.open_as(at, variant, plan.source, _make_config(plan, variant))

    def open_as(self, at: int, variant: Variant, source: str, config: Config) -> None:
        place = self._folder / str(at)
        place.mkdir()
        self.children[at] = Process(place, self._folder)
        opening = VariantOpening(config.as_dict(), source, str(place))
        variant.facts = self.request(at, variant, Command("open", opening), VariantFacts)

    def request(self, at: int, variant: Variant, command: Command, kind: type[Kind]) -> Kind | None:
        """Return the answer. If the variant failed, set its ``error``, close it and return None."""
        answer, reply = self.children[at].request(command, kind)
        if answer is None:
            variant.error, variant.exit_code = reply.error, reply.exit_code
            self.close(at)
            return None
        variant.memory_mb = reply.memory_mb
        return answer

    def close(self, at: int) -> None:
        self.children.pop(at).close()


@contextmanager
def _start_workers() -> Iterator[Workers]:
    with temporary_folder("detect-video-compare-") as folder:
        workers = Workers(folder)
        try:
            yield workers
            for at in list(workers.children):
                workers.close(at)
        finally:
            for child in workers.children.values():
                child.stop()


def with_frames(config: Config) -> Config:
    frames = config.input.frames if config.input.frames is not None else FRAMES
    return replace(config, input=replace(config.input, frames=frames))


def _make_config(plan: Rounds, variant: Variant) -> Config:
    config = with_frames(plan.config)
    runtime = replace(
        config.runtime, engine=variant.engine, precision=variant.precision, batch=variant.batch
    )
    if variant.model is not None:
        config = replace(config, network=replace(config.network, model=variant.model))
    return replace(config, runtime=runtime)


def _check_all(
    workers: Workers, numbered: list[tuple[int, Variant]], plan: Rounds, step: Callable[[str], None]
) -> str | None:
    """Compare the detections of a model's variants with its fp32 detections, without timing."""
    found: dict[int, list[Detections]] = {}
    variants = dict(numbered)
    for at, variant in numbered:
        step(f"check {variant.name}")
        if variant.error is None:
            answer = workers.request(at, variant, Command("check"), Digests)
            if answer is not None:
                variant.frames_digest = answer.frames_digest
                found[at] = read_detections(answer.detections)
    computing = [at for at in found if (facts := variants[at].facts) and facts.computes]
    reference = next(
        ((variants[at].name, found[at]) for at in computing if variants[at].precision == "fp32"),
        None,
    ) or _run_reference(workers, plan, [variants[at].engine for at in computing], *numbered[0])
    if reference is None:
        return None
    name, expected = reference
    for at, detections in found.items():
        if len(detections) == len(expected):
            # With several models, a row that is its own reference gets no agreement.
            if not (plan.models and variants[at].name == name):
                variants[at].agreement = agreement(expected, detections)
                variants[at].reference = name
        else:
            workers.close(at)
            gave = counted(len(detections), "frame")
            variants[at].error = f"ran on {gave}, but {name} on {len(expected)}"
    return name


def _run_reference(
    workers: Workers, plan: Rounds, engines: Sequence[str], first: int, sibling: Variant
) -> tuple[str, list[Detections]] | None:
    """Run the model of ``sibling`` in fp32 on the first engine that can run it. Return the name and
    detections of this run. ``first``: the index of ``sibling``."""
    model = sibling.model
    for number, engine in enumerate(dict.fromkeys([*engines, choose_by_rank()[0]])):
        at = -1 - number - 100 * first  # a number that no other process has
        name = f"{label(engine, 'fp32', 1, model)} (reference)"
        variant = Variant(engine, "fp32", 1, name, model=model)
        workers.open(at, variant, plan)
        if variant.error is not None:
            continue
        answer = workers.request(at, variant, Command("check"), Digests)
        if answer is not None:
            detections = read_detections(answer.detections)
            workers.close(at)
            return variant.name, detections
    return None


def _judge(workers: Workers, at: int, variant: Variant, labels: Labels) -> None:
    """Compute a variant's average precision. This runs after all rounds, so that it affects neither
    the rounds' times nor the memory peak. Errors here become notes."""
    facts, memory_mb = variant.facts, variant.memory_mb
    assert facts is not None
    bound = labels.bind(facts.class_names)
    mapping = MappedClasses(bound.targets, bound.groups)
    answer = workers.request(at, variant, Command("judge", mapping=mapping), Judgement)
    variant.memory_mb = memory_mb
    reason, variant.error, variant.exit_code = variant.error, None, 0
    if answer is not None:
        detections = read_detections(answer.detections)
        try:
            variant.ap = labels.score(answer.seen, detections, not answer.damaged)
        except SourceError as error:
            reason = str(error)
    if reason is not None:
        notes = (*facts.notes, f"no average precision: {reason}")
        variant.facts = replace(facts, notes=notes)


def _describe_shared(plan: Rounds, variants: Sequence[Variant], reference: str | None) -> About:
    facts = next((variant.facts for variant in variants if variant.facts), VariantFacts())
    judged = plan.labels or plan.dataset
    return About(
        source=plan.source,
        model=facts.model,
        model_sha256=facts.model_sha256,
        model_input=facts.model_input,
        random_weights=facts.random_weights,
        rounds=max((len(one.rounds) for one in variants), default=0) or plan.most_rounds,
        frames=next((turn.frames for variant in variants for turn in variant.rounds), None),
        reference=reference,
        models=tuple(plan.models),
        budget=plan.config.calibration.budget,
        labels=judged.describe() if judged is not None else None,
        usual=None if plan.usual is None else label(*plan.usual, plan.batches[0]),
        why_usual=plan.why_usual,
    )
