"""Facts of the machine that a benchmark ran on: given by the user, never guessed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from detector.core.errors import UsageError
from detector.core.errors.parsing import quote
from detector.core.errors.reading import read_text
from detector.core.errors.yaml_parsing import parse_yaml
from detector.lab.audit.columns import BANDWIDTH, CLOCK, UNITS, WORK_RATE
from detector.lab.audit.numbers import FORM

# fact -> the quantity of its unit; "": a plain number, None: text
FACTS: dict[str, str | None] = {
    "peak": WORK_RATE,  # of the numeric type in use
    "bandwidth": BANDWIDTH,
    "clock": CLOCK,
    "cores": "",
    "flops_per_cycle": "",  # of a core: 32 with two 256-bit FMA units
    "pictures": "",  # that were measured
    "card": None,  # of a GPU
    "cpu": None,
}
SPELLED = "cores=8 peak=8.1TFLOPS bandwidth=320GB/s clock=3.2GHz flops_per_cycle=32 card=T4"


@dataclass(frozen=True, slots=True)
class Machine:
    given: dict[str, float | str] = field(default_factory=dict)

    def number(self, name: str) -> float | None:
        found = self.given.get(name)
        return found if isinstance(found, float) else None

    @property
    def peak(self) -> float | None:
        return self.number("peak")

    @property
    def bandwidth(self) -> float | None:
        return self.number("bandwidth")

    @property
    def card(self) -> str | None:
        found = self.given.get("card")
        return found if isinstance(found, str) else None


def read_machine(given: Sequence[str]) -> Machine:
    """``given``: KEY=VALUE, or a YAML file of such pairs. Raises UsageError."""
    facts: dict[str, float | str] = {}
    for one in given:
        if "=" in one:
            name, _, value = one.partition("=")
            facts[name.strip()] = _fact(name.strip(), value.strip(), one)
            continue
        content = parse_yaml(read_text(one, "facts of a machine"), one)
        if not isinstance(content, dict):
            raise UsageError(f"--machine {one}: give lines such as peak: 8.1TFLOPS")
        for name, value in content.items():
            facts[str(name)] = _fact(str(name), str(value), one)
    return Machine(facts)


def _fact(name: str, value: str, origin: str) -> float | str:
    if name not in FACTS:
        raise UsageError(
            f"--machine {quote(origin)}: unknown fact {quote(name)}; write {SPELLED} or pictures=N"
        )
    quantity = FACTS[name]
    if quantity is None:
        return value
    found = FORM.fullmatch(value)
    if found is None or "," in value:
        raise UsageError(f"--machine {name}: {quote(value)} is not a number; write {SPELLED}")
    number, unit = found["number"], (found["unit1"] or found["unit"] or "").lower()
    try:
        size = float(number)
    except ValueError:
        size = 0.0
    if quantity:
        name_of = unit if unit in UNITS and UNITS[unit][0] == quantity else f"{unit}/s"
        if UNITS.get(name_of, ("", 0.0))[0] != quantity:
            raise UsageError(f"--machine {name}={quote(value)}: add its unit; write {SPELLED}")
        size *= UNITS[name_of][1]
    if not 0 < size < 1e30:
        raise UsageError(f"--machine {name}={quote(value)}: must be above zero; write {SPELLED}")
    return size
