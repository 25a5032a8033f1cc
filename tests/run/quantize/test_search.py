"""The search for layers that must stay float: known answers, with stand-ins for graphs."""

from __future__ import annotations

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
    return frozenset(one.name for one in kept)


def losing(**losses: float) -> Any:
    """Agreement, where each unit in int8 costs a fixed share."""
    return lambda kept: 1 - sum(loss for name, loss in losses.items() if name not in kept)


def test_nothing_is_kept_where_plain_int8_is_enough() -> None:
    found = choose_float_units(UNITS, graph, losing(a=0.04), 0.95)
    assert (found.kept, found.plain, found.reached) == ([], 0.96, 0.96)
    assert found.agreements == [(0, 0.96)]


def test_the_worst_are_kept_and_no_more() -> None:
    order = [UNITS[2], UNITS[0], UNITS[5], *(one for one in UNITS if one.name not in "acf")]
    found = choose_float_units(order, graph, losing(c=0.2, a=0.1, f=0.04), 0.95)
    assert [one.name for one in found.kept] == ["c", "a"]
    assert found.plain == pytest.approx(0.66)
    assert found.reached == pytest.approx(0.96)


def test_what_was_kept_for_nothing_goes_back() -> None:
    """b comes before c in the order, but costs no agreement."""
    found = choose_float_units(UNITS, graph, losing(a=0.2, c=0.2), 0.95)
    assert [one.name for one in found.kept] == ["a", "c"]
    assert found.reached == 1


def test_the_dear_one_is_tried_in_int8_first() -> None:
    """Both of the first two are needed by the bisection's reckoning; either alone would do."""
    units = [unit("cheap", 10), unit("dear", 1000), unit("third"), unit("fourth")]

    def agreement(kept: frozenset[str]) -> float:
        return 0.96 if len(kept) >= 2 or (kept == {"cheap"} and tried.append(kept)) else 0.9  # type: ignore[func-returns-value]

    tried: list[frozenset[str]] = []
    found = choose_float_units(units, graph, agreement, 0.95)
    assert [one.name for one in found.kept] == ["cheap", "dear"]
    assert tried == [{"cheap"}, {"cheap"}]  # once by halving, once when dear was tried


def test_all_float_is_the_last_resort_and_needs_no_run() -> None:
    found = choose_float_units(UNITS, graph, losing(**dict.fromkeys("abcdefgh", 0.1)), 1.0)
    assert found.kept == UNITS
    assert found.reached == 1


@pytest.mark.parametrize("many", [1, 2, 100, 1000])
def test_the_number_of_runs_is_bounded(many: int) -> None:
    units = [unit(str(at)) for at in range(many)]
    found = choose_float_units(units, graph, lambda kept: len(kept) / many, 0.9)
    assert len(found.agreements) <= 1 + many.bit_length() + TRIALS


def test_ranking_is_by_error_and_cost() -> None:
    """error / sqrt(share of MACs): equal errors, the cheap one first; ties in the graph's order."""
    units = [unit("a", 400), unit("b", 100), unit("c", 100), unit("d", 100)]
    errors = {"a": 0.2, "b": 0.1, "c": 0.1, "d": 0.3}

    def error(kept: Any) -> float:
        (alone,) = set("abcd") - kept
        return errors[alone]

    assert [one.name for one in rank_units(units, graph, error)] == ["d", "a", "b", "c"]
