"""The search for units that must stay float, tested with stand-ins for graphs and agreements."""

from collections.abc import Sequence
from typing import Any

import pytest

from detector.core.models.graph.qdq import Unit
from detector.core.run.quantize.search import TRIALS, choose_float_units, rank_units


def unit(name: str, macs: int = 100) -> Unit:
    return Unit(name, (name,), 1, macs)


UNITS = [unit(name) for name in "abcdefgh"]


def graph(kept: Sequence[Unit]) -> Any:
    """Return a stand-in for a graph: the names of the units that stay float."""
    return frozenset(each.name for each in kept)


def losing(**losses: float) -> Any:
    """Return a function that computes the agreement: 1 minus the losses of all units in int8."""
    return lambda kept: 1 - sum(loss for name, loss in losses.items() if name not in kept)


def test_no_unit_stays_float_if_int8_everywhere_is_accurate_enough() -> None:
    result = choose_float_units(UNITS, graph, losing(a=0.04), 0.95)
    assert (result.kept, result.plain, result.reached) == ([], 0.96, 0.96)
    assert result.agreements == [(0, 0.96)]


def test_only_the_worst_units_stay_float() -> None:
    order = [UNITS[2], UNITS[0], UNITS[5], *(each for each in UNITS if each.name not in "acf")]
    result = choose_float_units(order, graph, losing(c=0.2, a=0.1, f=0.04), 0.95)
    assert [each.name for each in result.kept] == ["c", "a"]
    assert result.plain == pytest.approx(0.66)
    assert result.reached == pytest.approx(0.96)


def test_unit_without_effect_returns_to_int8() -> None:
    result = choose_float_units(UNITS, graph, losing(a=0.2, c=0.2), 0.95)
    assert [each.name for each in result.kept] == ["a", "c"]
    assert result.reached == 1


def test_most_expensive_unit_is_tried_in_int8_first() -> None:
    """The bisection leaves two units float. Each is then tried in int8, the expensive one first."""
    units = [unit("cheap", 10), unit("expensive", 1000), unit("third"), unit("fourth")]

    def agreement(kept: frozenset[str]) -> float:
        return 0.96 if len(kept) >= 2 or (kept == {"cheap"} and tried.append(kept)) else 0.9  # type: ignore[func-returns-value]

    tried: list[frozenset[str]] = []
    result = choose_float_units(units, graph, agreement, 0.95)
    assert [each.name for each in result.kept] == ["cheap", "expensive"]
    # {"cheap"} is tried twice: by the bisection, then to see whether "expensive" can be int8.
    assert tried == [{"cheap"}, {"cheap"}]


def test_all_units_stay_float_as_a_last_resort() -> None:
    result = choose_float_units(UNITS, graph, losing(**dict.fromkeys("abcdefgh", 0.1)), 1.0)
    assert result.kept == UNITS
    assert result.reached == 1


@pytest.mark.parametrize("many", [1, 2, 100, 1000])
def test_number_of_runs_is_bounded(many: int) -> None:
    units = [unit(str(at)) for at in range(many)]
    result = choose_float_units(units, graph, lambda kept: len(kept) / many, 0.9)
    assert len(result.agreements) <= 1 + many.bit_length() + TRIALS


def test_units_are_ranked_by_error_and_cost() -> None:
    """The rank is error / sqrt(share of MACs); ties keep the graph's order."""
    units = [unit("a", 400), unit("b", 100), unit("c", 100), unit("d", 100)]
    errors = {"a": 0.2, "b": 0.1, "c": 0.1, "d": 0.3}

    def error(kept: Any) -> float:
        (alone,) = set("abcd") - kept
        return errors[alone]

    assert [each.name for each in rank_units(units, graph, error)] == ["d", "a", "b", "c"]
