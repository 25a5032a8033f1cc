"""Numbers as people write them, with the interval that rounding leaves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detector.lab.audit.numbers import DecimalMark, Number, exact, show, total
from tests.lab.audit.cases import of_text, rules_of
from tests.properties import STEADY

POINT = DecimalMark(comma=False, point=True)
COMMA = DecimalMark(comma=True, point=False)
UNKNOWN = DecimalMark(comma=False, point=False)


@pytest.mark.parametrize(
    ("text", "value", "low", "high"),
    [
        ("12.5", 12.5, 12.45, 12.55),
        ("12", 12, 11.5, 12.5),
        ("12.50", 12.5, 12.495, 12.505),
        ("1,234.5", 1234.5, 1234.45, 1234.55),
        ("1'234.5", 1234.5, 1234.45, 1234.55),
        ("1e3", 1000, 500, 1500),
        ("1.00e3", 1000, 995, 1005),
        ("-0.009", -0.009, -0.0095, -0.0085),
        ("12.5 ± 0.3", 12.5, 12.2, 12.8),
        ("12.5 (± 0.3)", 12.5, 12.2, 12.8),
        ("12.5 +/- 0.3 ms", 12.5, 12.2, 12.8),
        ("35.2 [26.5..37.2]", 35.2, 26.5, 37.2),
        ("405..440", 422.5, 405, 440),
        ("405 - 440", 422.5, 405, 440),
        ("~400", 400, 360, 440),
        ("1.31x", 1.31, 1.305, 1.315),
        ("97%", 97, 96.5, 97.5),
    ],
)
def test_number_is_read_with_its_interval(text, value, low, high) -> None:
    number = POINT.read(text)
    assert number is not None
    assert (number.value, number.low, number.high) == pytest.approx((value, low, high))


@pytest.mark.parametrize(
    "text", ["", "yes", "2026-01-02", "1.2.3", "640x640", "=1+1", "9" * 80, "1e999"]
)
def test_text_without_a_number_is_read_as_none(text) -> None:
    assert POINT.read(text) is None


def test_two_commas_in_a_number_are_thousands_separators() -> None:
    assert DecimalMark(comma=True, point=True).read("1,234,567").value == 1_234_567


@pytest.mark.parametrize(
    ("value", "text"),
    [(12.345, "12.35"), (20_000.4, "20000"), (2e12, "2.000e+12"), (2e-5, "2.000e-05")],
)
def test_numbers_are_shown_with_four_figures(value, text) -> None:
    assert show(value) == text


def test_zero_with_a_huge_exponent_is_a_number() -> None:
    assert POINT.read("0e999").value == 0
    assert POINT.read("0e-999").value == 0


@STEADY
@given(st.text("0123456789.,'e+-±[]()~<%x msE…–", max_size=24), st.booleans(), st.booleans())
def test_any_text_is_read_as_a_number_or_none(text, comma, point) -> None:
    number = DecimalMark(comma, point).read(text)
    assert number is None or number.low <= number.high


@pytest.mark.parametrize(
    ("cells", "comma", "point"),
    [
        (["12,5"], True, False),
        (["0,123"], True, False),
        (["1.234,5"], True, False),
        (["12.5"], False, True),
        (["1,234.5"], False, True),
        (["1,234,567"], False, True),
        (["1,234"], False, False),
        (["1.234"], False, False),
        (["net v1.25", "sizes 1,32 and 64"], False, False),
    ],
)
def test_decimal_mark_is_inferred_from_cells(cells, comma, point) -> None:
    assert DecimalMark.of(cells) == DecimalMark(comma, point)


def test_ambiguous_number_is_not_read() -> None:
    assert UNKNOWN.read("1,234") is None
    assert UNKNOWN.explain_unread("1,234")
    assert POINT.read("1,234") == Number(1234, 1233.5, 1234.5)
    assert COMMA.read("1,234").value == pytest.approx(1.234)
    assert COMMA.read("1.234").value == 1234
    both = DecimalMark(comma=True, point=True)
    assert both.read("1,234") is None
    assert both.read("1.234,5").value == pytest.approx(1234.5)


@STEADY
@given(st.floats(0.1, 1e6), st.floats(0.1, 1e6), st.integers(0, 4), st.integers(0, 4))
def test_results_from_rounded_numbers_agree_with_exact_results(a, b, more, fewer) -> None:
    one, two = (POINT.read(f"{value:.{n}f}") for value, n in ((a, more), (b, fewer)))
    assert (one + two).meets(exact(a + b), 1e-12)
    assert (one * two).meets(exact(a * b), 1e-12)
    assert (one - two).meets(exact(a - b), 1e-9)
    if two.low > 0:
        assert (one / two).meets(exact(a / b), 1e-12)
    assert total([one, two]).meets(exact(a + b), 1e-12)


def test_division_by_a_number_that_may_be_zero_can_give_any_result() -> None:
    assert (exact(1) / Number(0, -1, 1)).meets(exact(1e9))
    text = "engine,inference FPS,end-to-end FPS\na,1.09,0.92\nb,10.45,4.99\nc,9.0,2 ± 2\n"
    assert "outside-time-differs" in rules_of(of_text(text))  # because of rows a and b
