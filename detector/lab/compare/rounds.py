"""All variants are open side by side, each in its own process, and take turns for several rounds.
Each round draws a new order: ``analysis.statistics`` needs that."""

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
from detector.core.engines import choose_by_rank
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
    MappedClasses,
    Process,
    VariantOpening,
    Wanted,
    read_detections,
)
from detector.lab.peaks import PeaksOf, find_peaks
from detector.lab.session.comparison import About, Comparison, Round, VariantFacts
from detector.lab.session.network import Peaks

FRAMES = 60  # of a round, by default: two seconds at 30 frames a second
EACH_MODELS = "fp32 of the same model"
Watch = Callable[[str, int, int], object]  # what is being done, steps done, steps in all


@dataclass(frozen=True, slots=True)
class Rounds:
    """Every engine with every precision, batch and model.

    ``rounds``: timed turns of each variant; None: until every row is decided, or ``seconds`` have
    passed. ``usual``: a plain run's engine and precision, which have a row too. ``dice``: draws the
    order.
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
        made: list[Variant] = []
        models: Sequence[str | None] = self.models or (None,)
        choices = [*product(models, self.engines, self.precisions, self.batches)]
        if self.usual and all(self.usual != (engine, kind) for _, engine, kind, _ in choices):
            choices.append((None, *self.usual, self.batches[0]))
        for model, engine, precision, batch in choices:
            name = label(engine, precision, batch, model)
            known = [label(one.engine, one.precision, one.batch, one.model) for one in made]
            twins = known.count(name)
            unique = f"{name} #{twins + 1}" if twins else name
            made.append(Variant(engine, precision, batch, unique, model=model))
        return made


def compare(plan: Rounds, watch: Watch) -> tuple[Comparison, list[Variant]]:
    """Run the plan; return the document, and the variants with their raw rounds. A variant that
    fails has its ``error``. Raises SourceError and UsageError for labels that do not fit."""
    variants = plan.variants()
    judged = (plan.labels is not None) + (plan.dataset is not None)
    turns = len(variants) + (plan.rounds is None)  # with the baseline's twin
    steps = len(variants) * (2 + judged) + turns * plan.most_rounds + bool(plan.models)
    done = 0

    def step(text: str) -> None:
        nonlocal done
        watch(text, done, steps)
        done += 1

    with _crew() as crew:
        for at, variant in enumerate(variants):
            step(f"open {variant.name}")
            crew.open(at, variant, plan)
            if plan.labels is not None and variant.facts is not None:
                plan.labels.bind(variant.facts.class_names)  # before the next one is loaded
        references = [_check_all(crew, of_model, plan, step) for of_model in _by_model(variants)]
        look = take_rounds(crew, variants, plan, step)
        _judge_all(crew, variants, plan, step)
        if plan.models:
            step("this computer's peaks")
            _place_on_roofs(variants, plan)
    # The processes are gone: what runs a data set has the computer for itself.
    for variant in variants if plan.dataset is not None else ():
        step(f"judge {variant.name}")
        if variant.error is None and plan.dataset is not None:
            plan.dataset.judge(variant, _config_of(plan, variant), plan.source)
    watch("done", steps, steps)
    reference = references[0] if len(references) == 1 else EACH_MODELS
    return compare_variants(variants, _about(plan, variants, reference), look), variants


def take_rounds(
    crew: Processes, variants: Sequence[Variant], plan: Rounds, step: Callable[[str], None]
) -> RoundsLook:
    turns = list(enumerate(variants))
    twin = _open_twin(crew, variants, plan) if plan.rounds is None else None
    if twin is not None:
        turns.append((len(variants), twin))
    start, done = time.monotonic(), 0
    while True:
        done += 1
        for at, variant in plan.dice.sample(turns, len(turns)):
            step(f"round {done} of {plan.most_rounds}: {variant.name}")
            if variant.error is None:
                _run_round(crew, at, variant)
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
            or is_decided(compare_variants(variants, _about(plan, variants, None), look))
        ):
            return look


def run_in_turns(
    source: str,
    configs: Sequence[Config],
    opens: Callable[[int], bool],
    stays: Callable[[Sequence[Variant], Sequence[list[Detections]]], Collection[int]],
) -> tuple[list[Variant], list[list[Detections]]]:
    """Run whole configurations in turns; return what each detected in its first round. ``opens``:
    asked before the one with this number is opened; ``stays``: after each round, which go on."""
    variants = [
        Variant(one.runtime.engine, one.runtime.precision, one.runtime.batch) for one in configs
    ]
    found: list[list[Detections]] = [[] for _ in configs]
    dice = random.Random()
    with _crew() as crew:
        left: list[int] = []
        for at, variant in enumerate(variants):
            if not opens(at):
                break
            crew.open_as(at, variant, source, configs[at])
            if variant.error is None:
                left.append(at)
        while left:
            for at in dice.sample(left, len(left)):
                keeps = not variants[at].rounds
                answer = crew.ask(at, variants[at], Command("round", keeps=keeps), Round)
                if answer is None:
                    left.remove(at)
                    continue
                variants[at].rounds.append(answer)
                if answer.detections is not None:
                    found[at] = read_detections(answer.detections)
            kept = stays(variants, found)
            for at in {*left} - {*kept}:
                crew.close(at)
            left = [at for at in left if at in kept]
    return variants, found


def _open_twin(crew: Processes, variants: Sequence[Variant], plan: Rounds) -> Variant | None:
    """Open the baseline again: the difference between the two is noise."""
    base = next((one for one in variants if one.error is None), None)
    if base is None:
        return None
    twin = Variant(
        base.engine, base.precision, base.batch, f"{base.name} (again)", model=base.model
    )
    crew.open(len(variants), twin, plan)
    return twin


def _place_on_roofs(variants: Sequence[Variant], plan: Rounds) -> None:
    """Set each variant's rate below the measured peaks; none on a GPU, which has none."""
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
            known[key] = find_peaks(PeaksOf(*key, own_options(plan.config)), plan.config)
        inputs = Tiling.of(plan.config).inputs  # of the network for a frame
        variant.roof = place_on_roof(
            facts.layers, variant.batch, inputs * median(measured), known[key]
        )


class Processes:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._children: dict[int, Process] = {}

    def open(self, at: int, variant: Variant, plan: Rounds) -> None:
        self.open_as(at, variant, plan.source, _config_of(plan, variant))

    def open_as(self, at: int, variant: Variant, source: str, config: Config) -> None:
        place = self._folder / str(at)
        place.mkdir()
        self._children[at] = Process(place, self._folder)
        opening = VariantOpening(config.as_dict(), source, str(place))
        variant.facts = self.ask(at, variant, Command("open", opening), VariantFacts)

    def ask(self, at: int, variant: Variant, command: Command, kind: type[Wanted]) -> Wanted | None:
        """Return None if the variant failed: its ``error`` says why, and its process has ended."""
        answer, reply = self._children[at].ask(command, kind)
        if answer is None:
            variant.error, variant.exit_code = reply.error, reply.exit_code
            self.close(at)
            return None
        variant.memory_mb = reply.memory_mb
        return answer

    def close(self, at: int) -> None:
        self._children.pop(at).close()

    def close_all(self) -> None:
        for at in list(self._children):
            self.close(at)

    def stop_all(self) -> None:
        for child in self._children.values():
            child.stop()


@contextmanager
def _crew() -> Iterator[Processes]:
    with temporary_folder("detect-video-compare-") as folder:
        crew = Processes(folder)
        try:
            yield crew
            crew.close_all()
        finally:
            crew.stop_all()


def with_frames(config: Config) -> Config:
    frames = config.input.frames if config.input.frames is not None else FRAMES
    return replace(config, input=replace(config.input, frames=frames))


def _config_of(plan: Rounds, variant: Variant) -> Config:
    config = with_frames(plan.config)
    runtime = replace(
        config.runtime, engine=variant.engine, precision=variant.precision, batch=variant.batch
    )
    if variant.model is not None:
        config = replace(config, network=replace(config.network, model=variant.model))
    return replace(config, runtime=runtime)


def _check_all(
    crew: Processes, numbered: list[tuple[int, Variant]], plan: Rounds, step: Callable[[str], None]
) -> str | None:
    """Compare each model's variants with its fp32 on the same pictures, untimed."""
    found: dict[int, list[Detections]] = {}
    variants = dict(numbered)
    for at, variant in numbered:
        step(f"check {variant.name}")
        if variant.error is None:
            answer = crew.ask(at, variant, Command("check"), Digests)
            if answer is not None:
                variant.frames_digest = answer.frames_digest
                found[at] = read_detections(answer.detections)
    computing = [at for at in found if (facts := variants[at].facts) and facts.computes]
    fp32 = [at for at in computing if variants[at].precision == "fp32"]
    if fp32:
        reference: tuple[str, list[Detections]] | None = (variants[fp32[0]].name, found[fp32[0]])
    else:
        several = numbered[0][1].model
        reference = _run_reference(
            crew, plan, [variants[at].engine for at in computing], several, numbered[0][0]
        )
    if reference is None:
        return None
    name, truth = reference
    for at, detections in found.items():
        if len(detections) == len(truth):
            # A model that stands alone agrees with itself, which says nothing of it.
            if not (plan.models and variants[at].name == name):
                variants[at].agreement = agreement(truth, detections)
                variants[at].reference = name
        else:
            crew.close(at)
            gave = counted(len(detections), "frame")
            variants[at].error = f"detected {gave} and {name} detected {len(truth)}"
    return name


def _run_reference(
    crew: Processes, plan: Rounds, engines: Sequence[str], model: str | None, first: int
) -> tuple[str, list[Detections]] | None:
    for number, engine in enumerate(dict.fromkeys([*engines, choose_by_rank()[0]])):
        at = -1 - number - 100 * first  # no number of another process
        named = f"{label(engine, 'fp32', 1, model)} (reference)"
        variant = Variant(engine, "fp32", 1, named, model=model)
        crew.open(at, variant, plan)
        if variant.error is not None:
            continue
        answer = crew.ask(at, variant, Command("check"), Digests)
        if answer is not None:
            found = read_detections(answer.detections)
            crew.close(at)
            return variant.name, found
    return None


def _by_model(variants: Sequence[Variant]) -> list[list[tuple[int, Variant]]]:
    found: dict[str | None, list[tuple[int, Variant]]] = {}
    for at, variant in enumerate(variants):
        found.setdefault(variant.model, []).append((at, variant))
    return list(found.values())


def _judge_all(
    crew: Processes, variants: Sequence[Variant], plan: Rounds, step: Callable[[str], None]
) -> None:
    if plan.labels is None:
        return
    for at, variant in enumerate(variants):
        step(f"judge {variant.name}")
        if variant.error is None:
            _judge(crew, at, variant, plan.labels)


def _judge(crew: Processes, at: int, variant: Variant, labels: Labels) -> None:
    """Compute a variant's average precision after all rounds, so that it affects no time or memory
    peak. Errors here become notes."""
    facts, memory_mb = variant.facts, variant.memory_mb
    assert facts is not None
    bound = labels.bind(facts.class_names)
    mapping = MappedClasses(bound.targets, bound.groups)
    answer = crew.ask(at, variant, Command("judge", mapping=mapping), Judgement)
    variant.memory_mb = memory_mb
    reason, variant.error, variant.exit_code = variant.error, None, 0
    if answer is not None:
        found = read_detections(answer.detections)
        try:
            variant.ap = labels.score(answer.seen, found, not answer.damaged)
        except SourceError as error:
            reason = str(error)
    if reason is not None:
        notes = (*facts.notes, f"no average precision: {reason}")
        variant.facts = replace(facts, notes=notes)


def _run_round(crew: Processes, at: int, variant: Variant) -> None:
    answer = crew.ask(at, variant, Command("round"), Round)
    if answer is not None:
        variant.rounds.append(answer)


def _about(plan: Rounds, variants: Sequence[Variant], reference: str | None) -> About:
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
