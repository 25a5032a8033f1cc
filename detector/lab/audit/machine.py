"""Facts about the machine that a benchmark ran on, given by the user (``--machine``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from detector.core.errors import UsageError
from detector.core.errors.parsing import quote
from detector.core.errors.reading import read_text
from detector.core.errors.yaml_parsing import parse_yaml
from detector.lab.audit.columns import BANDWIDTH, CLOCK, UNITS, WORK_RATE
from detector.lab.audit.numbers import PATTERN

# fact -> the quantity of its unit; "" for a number without unit, None for text
FACTS: dict[str, str | None] = {
    "peak": WORK_RATE,  # for the data type in use
    "bandwidth": BANDWIDTH,
    "clock": CLOCK,
    "cores": "",
    "flops_per_cycle": "",  # per core: 32 with two 256-bit FMA units
    "pictures": "",  # number of measured pictures
    "card": None,  # the GPU
    "cpu": None,
}
EXAMPLES = "cores=8 peak=8.1TFLOPS bandwidth=320GB/s clock=3.2GHz flops_per_cycle=32 card=T4"


@dataclass(frozen=True, slots=True)
class Machine:
    given: dict[str, float | str] = field(default_factory=dict)

    def number(self, name: str) -> float | None:
        value = self.given.get(name)
        return value if isinstance(value, float) else None


def read_machine(arguments: Sequence[str]) -> Machine:
    """Read facts. An argument is KEY=VALUE or a YAML file of facts. Raises UsageError."""
    facts: dict[str, float | str] = {}
    for text in arguments:
        if "=" in text:
            name, _, value = text.partition("=")
            facts[name.strip()] = _parse_fact(name.strip(), value.strip(), text)
            continue
        content = parse_yaml(read_text(text, "facts of a machine"), text)
        if not isinstance(content, dict):
            raise UsageError(f'--machine {text}: write a fact per line, such as "peak: 8.1TFLOPS"')
        for name, value in content.items():
            facts[str(name)] = _parse_fact(str(name), str(value), text)
    return Machine(facts)


def _parse_fact(name: str, value: str, origin: str) -> float | str:
    if name not in FACTS:
        raise UsageError(
            f"--machine {quote(origin)}: unknown fact {quote(name)}; facts: {EXAMPLES} pictures=9"
        )
    quantity = FACTS[name]
    if quantity is None:
        return value
    match = PATTERN.fullmatch(value)
    if match is None or "," in value:
        raise UsageError(f"--machine {name}: {quote(value)} is not a number; examples: {EXAMPLES}")
    number, unit = match["number"], (match["unit1"] or match["unit"] or "").lower()
    try:
        size = float(number)
    except ValueError:
        size = 0.0
    if quantity:
        full_unit = unit if unit in UNITS and UNITS[unit][0] == quantity else f"{unit}/s"
        if UNITS.get(full_unit, ("", 0.0))[0] != quantity:
            raise UsageError(f"--machine {name}={quote(value)}: add its unit; examples: {EXAMPLES}")
        size *= UNITS[full_unit][1]
    if not 0 < size < 1e30:
        raise UsageError(f"--machine {name}={quote(value)}: must be above 0; examples: {EXAMPLES}")
    return size
