"""Parts of the report on the resources of a run: memory, energy, CPU counters, Python functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape

from detector.core.tables import Column, Share, Table
from detector.lab.report.html import drawings
from detector.lab.report.html.drawings import (
    details,
    figure,
    filter_box,
    legend,
    table,
    text,
    thin_out,
)
from detector.lab.report.part import How, Part
from detector.lab.report.parts.loop import INSTRUMENTS
from detector.lab.session.passes import (
    CountersFacts,
    EnergyFacts,
    GpuMemory,
    MemoryFacts,
    PythonFacts,
)
from detector.lab.session.read import SavedSession

MIN_SHARE = 0.005  # packages and libraries with a smaller share of Python's time are not listed
LONGEST_FUNCTIONS = 10  # rows on a terminal


def memory_text(facts: MemoryFacts) -> str:
    slope = facts.slope_mb_per_1000_frames
    growth = (
        facts.slope_reason
        if slope is None
        else f"{slope:+.2f} MB per 1000 frames in the second half"
    )
    resident = f"{facts.start_mb:.0f} MB at the start, {facts.peak_mb:.0f} MB at the peak"
    return f"{resident}; growth: {growth}"


def describe_memory(facts: MemoryFacts) -> Iterator[Table | str]:
    gpu = facts.gpu
    shown = "" if gpu is None or gpu.used_mb is None else f"; {gpu_text(gpu)}"
    yield f"memory: {memory_text(facts)}{shown}"
    if facts.parts_mb:
        yield parts_table(facts)


def gpu_text(gpu: GpuMemory) -> str:
    torch, mine = gpu.torch_peak_allocated_mb, gpu.process_mb
    own = "" if mine is None else f"{mine:.0f} MB by this process, "
    whole = "" if gpu.total_mb is None else f" of {gpu.total_mb:.0f}"
    by_torch = "" if torch is None else f", torch at most {torch:.0f}"
    return f"GPU at most {own}{gpu.used_mb:.0f}{whole} MB by all{by_torch}"


PARTS_OF_MEMORY = (
    Column("part", value=lambda one: one[0]),
    Column("mb", "MB", ".1f", value=lambda one: one[1]),
)


def parts_table(facts: MemoryFacts) -> Table:
    """Return the parts and their sum, which is the memory peak of a run in its own process."""
    parts = sorted(facts.parts_mb.items(), key=lambda one: -one[1])
    rows = [*parts, ("peak", sum(facts.parts_mb.values()))]
    return Table("memory", PARTS_OF_MEMORY, rows, "memory of a run in its own process")


def memory(session: SavedSession, facts: MemoryFacts) -> str:
    points = [(sample.t_s, sample.rss_mb) for sample in thin_out(facts.samples)]
    drawn = figure(drawings.curve(points, "s", "MB"), f"Resident: {memory_text(facts)}.")
    return drawn + (table(parts_table(facts)) if facts.parts_mb else "")


TAGS = ("package", "core", "dram", "gpu")
ENERGY = (
    Column("timestamp"),
    Column("tag", "of"),
    Column("duration", "seconds", ".2f"),
    *(Column(tag, form=".2f", unit="J") for tag in TAGS),
    Column("joules_per_frame", "J a frame", ".4f"),
)


def energy_tags(facts: EnergyFacts) -> list[str]:
    return [tag for tag in TAGS if any(row.joules(tag) is not None for row in facts.rows)]


def energy_table(facts: EnergyFacts) -> Table:
    whole = Table("energy", ENERGY, facts.rows, "energy (of the run, without idle power)")
    return whole.pick("tag", "duration", *energy_tags(facts), "joules_per_frame")


def describe_energy(facts: EnergyFacts) -> Iterator[Table | str]:
    yield energy_table(facts)
    if facts.frames_per_joule:
        yield f"{facts.frames_per_joule:.3g} frames per joule"


def energy(session: SavedSession, facts: EnergyFacts) -> str:
    each = facts.frames_per_joule
    note = (
        f"{facts.joules_per_frame:.2f} J/frame{f', {each:.3g} frames/J' if each else ''}: package, "
        "memory and GPU, without idle power. The cores are part of the package."
    )
    return text(note) + _power(facts, energy_tags(facts)) + table(energy_table(facts))


def _power(facts: EnergyFacts, tags: Sequence[str]) -> str:
    samples = facts.samples
    if len(samples) < 2:
        return ""
    first = samples[0].timestamp
    series = {
        tag: [
            (row.timestamp - first + row.duration / 2, joules / row.duration)
            for row in thin_out(samples)
            if (joules := row.joules(tag)) is not None and row.duration > 0
        ]
        for tag in tags
    }
    begin = next((row.timestamp - first for row in samples if row.tag.startswith("run")), None)
    marks = {} if begin is None else {"loading and the run": begin}
    drawn = drawings.lines(series, "s", "W", marks=marks)
    return legend(list(series)) + figure(drawn, "power over time, with idle and loading")


def _figures(facts: CountersFacts) -> Mapping[str, float | None]:
    return {
        "instructions per cycle": facts.ipc,
        "cache misses": None if facts.cache_miss_rate is None else Share(facts.cache_miss_rate),
        "instructions per frame": facts.instructions_per_frame,
    }


COUNTERS = (Column("what", value=lambda one: one[0]), Column("value", value=lambda one: one[1]))


def counters(session: SavedSession, facts: CountersFacts) -> str:
    note = text(f"Counted over a run in a separate process, {facts.includes}.")
    rows = list({**_figures(facts), **facts.counts}.items())
    return note + table(Table("counters", COUNTERS, rows))


def describe_counters(facts: CountersFacts) -> Sequence[str]:
    value = COUNTERS[1]
    figures = ", ".join(f"{value.text(one)} {what}" for what, one in _figures(facts).items())
    return [f"counters: {figures} ({facts.includes})"]


OWNERS = (
    Column("owner", "package or library", value=lambda one: one[0]),
    Column("self_s", "self", ".3f", "s", value=lambda one: one[1]),
    Column("share", form=".1%", value=lambda one: one[2]),
)
FUNCTIONS = (
    Column("function"),
    Column("calls", out=1),
    Column("self_s", "self", ".3f", "s"),
    Column("total_s", "with its callees", ".3f", "s", out=2),
)


def owners_table(facts: PythonFacts) -> Table:
    whole = sum(facts.folded.values()) or 1.0
    rows = [
        (name, seconds, seconds / whole)
        for name, seconds in facts.folded.items()
        if seconds >= MIN_SHARE * whole
    ]
    return Table("owners", OWNERS, rows, "Python: self time under cProfile, one plain loop")


def functions_table(facts: PythonFacts) -> Table:
    return Table("python", FUNCTIONS, facts.functions, "functions")


def describe_python(facts: PythonFacts) -> Sequence[Table]:
    return [owners_table(facts), functions_table(facts).first(LONGEST_FUNCTIONS)]


def python(session: SavedSession, facts: PythonFacts) -> str:
    functions, owners = functions_table(facts), owners_table(facts)
    title = f"{len(functions.rows)} functions with the longest self time"
    inside = details(title, filter_box("python", "functions"), table(functions))
    if facts.tree:
        tree = f'<div class="scroll"><pre class="tree">{escape(facts.tree)}</pre></div>'
        inside += details("call tree by pyinstrument, from a separate run", tree)
    return (table(owners) if owners.rows else "") + inside


MEMORY = How(
    "memory", "memory", "Resident set size of the process, sampled in a separate run.", "Memory"
)
JOULES = How(
    "energy",
    "energy",
    "The processor's and the GPU's own counters, read every 100 ms, minus idle power. "
    "Nothing is estimated.",
    "Energy",
)
PYTHON = How("python", "Python", "One plain loop under cProfile.", "Python")
PARTS = (
    Part("memory", "Memory", 130, memory, how=MEMORY, facts=MemoryFacts, says=describe_memory),
    Part("energy", "Energy", 140, energy, how=JOULES, facts=EnergyFacts, says=describe_energy),
    Part(
        "counters",
        "Counters",
        150,
        counters,
        how=INSTRUMENTS,
        facts=CountersFacts,
        says=describe_counters,
        detail=True,
    ),
    Part(
        "functions",
        "Python",
        160,
        python,
        how=PYTHON,
        facts=PythonFacts,
        says=describe_python,
        detail=True,
    ),
)
