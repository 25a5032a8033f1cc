"""All variants open side by side, each in its process; then A B C A B C, one at a time, for some rounds."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from detector.analysis.accuracy.matching import agreement
from detector.analysis.compare import Round, Variant, compared, label
from detector.config.schema import Config
from detector.errors import EXIT_ENGINE, SourceError
from detector.jobs.compare.labels import Labels, Seen
from detector.jobs.compare.worker import load_detections
from detector.types import Detections

# ----------------------------------------------------------------------
# The parent's end of a worker: start, ask, stop. Death of a worker is an answer like any other.

ROOT = Path(__file__).parents[3]
# -P: a folder called detector in the current directory must not be taken for this package.
COMMAND = [
    sys.executable,
    "-P",
    "-c",
    f"import sys; sys.path.insert(0, {str(ROOT)!r}); "
    "from detector.jobs.compare.worker import main; main()",
]
GRACE_S = 3.0  # to leave in order before it is killed
LAST_WORDS = 300  # characters of stderr in a message


class Child:
    """A worker process. ``folder`` is its own; it must exist."""

    def __init__(self, folder: Path) -> None:
        self._stderr = folder / "stderr.txt"
        with self._stderr.open("wb") as stderr:
            self._process = subprocess.Popen(
                COMMAND,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                encoding="utf-8",
                start_new_session=True,  # a Ctrl-C in the terminal reaches the parent only, which then ends all
            )

    def ask(self, command: dict[str, Any]) -> dict[str, Any]:
        """The worker's answer; ``error`` and ``exit_code`` in it where it refused, or died."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            return self._epitaph(command["do"])
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _epitaph(self, doing: str) -> dict[str, Any]:
        code = self._process.wait()
        how = f"by signal {-code} ({_signal_name(-code)})" if code < 0 else f"with status {code}"
        words = " ".join(self._stderr.read_text(encoding="utf-8", errors="replace").split())[
            -LAST_WORDS:
        ]
        hint = "; killed for want of memory?" if code == -signal.SIGKILL else ""
        text = f"its process ended {how} during {doing}{hint}" + (
            f"; its last words: {words}" if words else ""
        )
        return {"error": text, "exit_code": EXIT_ENGINE}

    def close(self) -> None:
        """Lets it go in order; may be called twice."""
        with suppress(OSError, ValueError):
            assert self._process.stdin is not None
            self._process.stdin.write('{"do": "close"}\n')
            self._process.stdin.close()
        self._end()

    def stop(self) -> None:
        """Ends it now, whatever it is doing."""
        self._signal(signal.SIGTERM)
        self._end()

    def _end(self) -> None:
        try:
            self._process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            self._process.wait()
        finally:
            self._signal(signal.SIGKILL)  # what it may have started itself
            for pipe in (self._process.stdin, self._process.stdout):
                with suppress(OSError):
                    assert pipe is not None
                    pipe.close()

    def _signal(self, number: int) -> None:
        """To its whole process group, which outlives it as long as anything of it runs."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"


FRAMES = 60  # a round, where the user does not say: two seconds at 30 frames a second
Watch = Callable[[str, int, int], None]
"""(what is being done, steps done, steps in all)"""


@dataclass(frozen=True, slots=True)
class Plan:
    """``config``: of all variants, engine, precision and batch apart. ``rounds``: timed turns of each. ``labels``: of
    the frames of a round, where there are any."""

    source: str
    config: Config
    engines: Sequence[str]
    precisions: Sequence[str]
    batches: Sequence[int]
    rounds: int
    labels: Labels | None = None

    def variants(self) -> list[Variant]:
        """Engines outermost, batches innermost; one that was asked for twice is told apart by its number."""
        found: list[Variant] = []
        for engine, precision, batch in product(self.engines, self.precisions, self.batches):
            name = label(engine, precision, batch)
            twins = sum(label(one.engine, one.precision, one.batch) == name for one in found)
            found.append(
                Variant(engine, precision, batch, f"{name} #{twins + 1}" if twins else name)
            )
        return found


def compare(plan: Plan, watch: Watch) -> tuple[dict[str, Any], list[Variant]]:
    """Measures, and says what came of it (``analysis.compare.compared``), with the raw rounds.

    Leaves neither process nor file behind, also when it is interrupted. A variant that fails has its ``error``; the
    others go on. Raises SourceError and UsageError for labels that do not fit the model, before anything is timed.
    """
    variants = plan.variants()
    steps = len(variants) * (2 + plan.rounds + (plan.labels is not None))
    done = 0

    def step(text: str) -> None:
        nonlocal done
        watch(text, done, steps)
        done += 1

    with _crew() as crew:
        for at, variant in enumerate(variants):
            step(f"open {variant.name}")
            crew.open(at, variant, plan)
            if plan.labels is not None and variant.error is None:
                plan.labels.bind(variant.facts["class_names"])  # before the next one is loaded
        reference = _check_all(crew, variants, plan, step)
        for number in range(plan.rounds):
            for at, variant in enumerate(variants):
                step(f"round {number + 1} of {plan.rounds}: {variant.name}")
                if variant.error is None:
                    _round(crew, at, variant)
        if plan.labels is not None:
            for at, variant in enumerate(variants):
                step(f"judge {variant.name}")
                if variant.error is None:
                    _judge(crew, at, variant, plan.labels)
        watch("done", steps, steps)
    return compared(variants, _about(plan, variants, reference)), variants


class _Crew:
    """The worker processes by number, and their folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._children: dict[int, Child] = {}

    def open(self, at: int, variant: Variant, plan: Plan) -> None:
        place = self._folder / str(at)
        place.mkdir()
        self._children[at] = Child(place)
        config = _config_of(plan, variant)
        answer = self.ask(
            at,
            variant,
            {"do": "open", "config": config.as_dict(), "source": plan.source, "folder": str(place)},
        )
        variant.facts = answer or {}

    def ask(self, at: int, variant: Variant, command: dict[str, Any]) -> dict[str, Any] | None:
        """None where it failed; the variant then says why, and its process is let go."""
        answer = self._children[at].ask(command)
        if "error" in answer:
            variant.error, variant.exit_code = answer["error"], answer["exit_code"]
            self.close(at)
            return None
        variant.memory_mb = answer.pop("memory_mb", None)
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
def _crew() -> Iterator[_Crew]:
    with tempfile.TemporaryDirectory(
        prefix="detect-video-compare-", ignore_cleanup_errors=True
    ) as folder:
        crew = _Crew(Path(folder))
        try:
            yield crew
            crew.close_all()
        finally:
            crew.stop_all()


def with_frames(config: Config) -> Config:
    """The number of frames of a round, where the user does not say one."""
    frames = config.input.frames if config.input.frames is not None else FRAMES
    return replace(config, input=replace(config.input, frames=frames))


def _config_of(plan: Plan, variant: Variant) -> Config:
    config = with_frames(plan.config)
    runtime = replace(
        config.runtime, engine=variant.engine, precision=variant.precision, batch=variant.batch
    )
    return replace(config, runtime=runtime)


def _check_all(
    crew: _Crew, variants: list[Variant], plan: Plan, step: Callable[[str], None]
) -> str | None:
    """What each finds in the same pictures, held against fp32. Returns the reference's name."""
    found = {}
    for at, variant in enumerate(variants):
        step(f"check {variant.name}")
        if variant.error is None and (answer := crew.ask(at, variant, {"do": "check"})):
            variant.frames_digest = answer["frames_digest"]
            found[at] = load_detections(Path(answer["detections"]))
    computing = [at for at in found if variants[at].facts["computes"]]
    fp32 = [at for at in computing if variants[at].precision == "fp32"]
    reference = (variants[fp32[0]].name, found[fp32[0]]) if fp32 else None
    reference = reference or _reference(crew, plan, [variants[at].engine for at in computing])
    if reference is None:
        return None
    name, truth = reference
    for at, detections in found.items():
        if len(detections) == len(truth):
            variants[at].agreement = agreement(truth, detections)
        else:
            crew.close(at)
            variants[at].error = f"gave {len(detections)} frames where {name} gave {len(truth)}"
    return name


def _reference(
    crew: _Crew, plan: Plan, engines: Sequence[str]
) -> tuple[str, list[Detections]] | None:
    """fp32 on the first engine that can, the default one last: only for what it finds, never timed."""
    from detector.run.choose import choose_by_rank

    for number, engine in enumerate(dict.fromkeys([*engines, choose_by_rank()[0]])):
        at = -1 - number
        variant = Variant(engine, "fp32", 1, f"{engine} fp32 (reference)")
        crew.open(at, variant, plan)
        answer = crew.ask(at, variant, {"do": "check"}) if variant.error is None else None
        if answer:
            found = load_detections(Path(answer["detections"]))
            crew.close(at)
            return variant.name, found
    return None


def _judge(crew: _Crew, at: int, variant: Variant, labels: Labels) -> None:
    """Average precision of what it finds. After all rounds, so that neither times nor the peak of memory have any part
    in it; and whatever goes wrong here leaves what was measured as it is."""
    bound, memory_mb = labels.bind(variant.facts["class_names"]), variant.memory_mb
    answer = crew.ask(
        at, variant, {"do": "judge", "targets": bound.targets, "groups": bound.groups}
    )
    variant.memory_mb = memory_mb
    reason, variant.error, variant.exit_code = variant.error, None, 0
    if answer is not None:
        found = load_detections(Path(answer["detections"]))
        try:
            variant.ap = labels.score(
                [Seen(*row) for row in answer["seen"]], found, not answer["damaged"]
            )
        except SourceError as error:
            reason = str(error)
    if reason is not None:
        variant.facts = {
            **variant.facts,
            "notes": [*variant.facts["notes"], f"no average precision: {reason}"],
        }


def _round(crew: _Crew, at: int, variant: Variant) -> None:
    if answer := crew.ask(at, variant, {"do": "round"}):
        variant.rounds.append(
            Round(answer["fps"], answer["cpu_ms"], answer["frames"], answer["idle_cpu"])
        )


def _about(plan: Plan, variants: Sequence[Variant], reference: str | None) -> dict[str, Any]:
    """What is the same for all rows."""
    facts = next((variant.facts for variant in variants if variant.facts), {})
    same = ("model", "model_sha256", "model_input", "random_weights")
    return {
        "source": plan.source,
        **{key: facts.get(key) for key in same},
        "rounds": plan.rounds,
        "frames": next((turn.frames for variant in variants for turn in variant.rounds), None),
        "reference": reference,
        "budget": plan.config.calibration.budget,
        "labels": plan.labels and plan.labels.as_json(),
    }
