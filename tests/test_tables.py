"""Tables in the terminal, in HTML, CSV, Markdown and LaTeX, from one description."""

import csv
import importlib
import io
import pkgutil
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from detector import core
from detector.core.tables import (
    Column,
    Rounded,
    Share,
    Table,
    csv_text,
    latex_text,
    markdown_text,
    plain,
)
from detector.core.terminal.console import SafeConsole
from detector.core.terminal.tables import print_pieces, table_fits
from detector.lab.report.html import drawings

COLUMNS = (
    Column("name", "the name of a layer"),
    Column("ms", "time", ".3f", "ms"),
    Column("share", form=".1%", out=2),
    Column("half", value=lambda row: row["ms"] / 2, out=1),
    Column("note", absent="nothing known"),
)
ROWS = [
    {"name": "a-long-name-of-a-layer", "ms": 12.3456789, "share": 0.5, "note": None},
    {"name": "=1+1", "ms": 0.25, "share": None, "note": "<b> of [bold]"},
]
TABLE = Table("layers", COLUMNS, ROWS, "times, ms", unit="ms", dim=[1], most=1)


def printed(table: Table, width: int) -> str:
    out = io.StringIO()
    print_pieces(SafeConsole(file=out, width=width), [table])
    return out.getvalue()


def words(text: str) -> set[str]:
    return set(re.findall(r"[^\s─]+", text))


def test_each_renderer_shows_the_same_columns_in_the_same_order() -> None:
    text = printed(TABLE, 200)
    heads = ["the name of a layer", "time", "share", "half", "note"]
    assert [text.index(head, 12) for head in heads] == sorted(text.index(h, 12) for h in heads)
    page = drawings.table(TABLE)
    shown = re.findall(r"<th[^>]*><button[^>]*>([^<]*)<", page)
    assert shown == ["the name of a layer", "time ms", "share", "half", "note"]
    first, *rows = csv.reader(io.StringIO(csv_text(TABLE)))
    assert first == ["name", "ms", "share", "half", "note"]
    assert rows[0] == ["a-long-name-of-a-layer", "12.3457", "0.5", "6.17284", ""]
    assert rows[1][0] == "'=1+1", "a spreadsheet would run it as a formula"


def test_html_table_keeps_full_values_and_escapes_markup() -> None:
    page = drawings.table(TABLE)
    assert 'data-value="12.3456789">12.35<' in page
    assert "&lt;b&gt; of [bold]" in page
    assert page.count('class="none"') == 2
    assert "show all 2 rows" in page


def test_terminal_rounds_by_the_format_of_the_column() -> None:
    text = printed(TABLE, 200)
    assert {"12.346", "50.0%", "6.17", "[bold]"} <= words(text)
    assert "nothing known" in text
    assert text.startswith("times, ms\n")


@pytest.mark.parametrize("width", range(43, 90))
def test_columns_are_dropped_before_words_are_broken(width: int) -> None:
    """Columns are dropped in the order of ``out``, and only as many as needed."""
    text = printed(TABLE, width)
    assert max(map(len, text.splitlines())) <= width
    assert {"a-long-name-of-a-layer", "12.346", "nothing", "known"} <= words(text)
    half, share = "half" in text, "share" in text
    assert share or not half
    assert share == table_fits(SafeConsole(width=width), TABLE.without("half"))
    assert half == table_fits(SafeConsole(width=width), TABLE)


def test_widest_column_wraps_if_no_column_may_be_dropped() -> None:
    text = printed(TABLE, 25)
    assert max(map(len, text.splitlines())) <= 25
    assert "12.346" in words(text)


def test_decimals_of_a_value_override_those_of_its_column() -> None:
    column = Column("x", form=".4f")
    assert column.text(Rounded(12.345, 1)) == "12.3"
    assert column.text(Share(0.125)) == "12.5%"
    assert column.text(float("nan")) == "-"
    assert column.text(3) == "3.0000"
    assert Column("x").text(1234.4) == "1234"


def test_part_of_a_table_can_be_selected() -> None:
    assert [one.key for one in TABLE.pick("note", "name").columns] == ["note", "name"]
    assert [one.key for one in TABLE.without("half", "note").columns] == ["name", "ms", "share"]
    assert TABLE.first(1).rows == ROWS[:1]
    with pytest.raises(KeyError):
        TABLE.pick("nothing")


def test_long_cell_is_shortened_in_the_middle() -> None:
    table = Table("t", (Column("name", longest=12),), ROWS)
    assert "a-lon...ayer" in printed(table, 200)


def test_dotted_key_reads_a_nested_value() -> None:
    inner = SimpleNamespace(share=0.5)
    rows = [SimpleNamespace(agreement=inner), SimpleNamespace(agreement=None)]
    column = Column("agreement.share", form=".0%")
    assert [column.text(column.of(row)) for row in rows] == ["50%", "-"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (12345, "12345"),
        (0.0, "0.00"),
        (0.004, "<0.01"),
        (-0.004, ">-0.01"),
        (0.0051, "0.01"),
        (1.0, "1.00"),
        (-12.346, "-12.35"),
        (100.0, "100.0"),
        (-123.46, "-123.5"),
        (1000.0, "1000"),
    ],
)
def test_plain_numbers_have_few_significant_digits(value: float, text: str) -> None:
    assert plain(value) == text


def test_markdown_and_latex_escape_their_special_characters() -> None:
    rows = [{"a|b": "<x_1>", "n": None}, {"a|b": "50 % & \\", "n": 0.125}]
    table = Table("t", (Column("a|b"), Column("n", unit="s")), rows, caption="of c|d")
    assert markdown_text(table) == (
        "| a\\|b | n s |\n| --- | ---: |\n| &lt;x_1> | - |\n| 50 % & \\ | 0.12 |\n\nof c\\|d\n"
    )
    package, begin, _, head, _, first, second, *_ = latex_text(table).splitlines()
    assert (package[:2], begin) == ("% ", "\\begin{tabular}{lr}")
    assert (head, first) == ("a|b & n s \\\\", "<x\\_1> & - \\\\")
    assert second == r"50 \% \& \textbackslash{} & 0.12 \\"
    assert "% of c|d" in latex_text(table)
    assert table.aligned_right(Column("a|b", right=True))
    bare = Table("t", (Column("n", right=False),), rows)
    assert markdown_text(bare).splitlines()[1] == "| --- |"
    assert markdown_text(bare).endswith("0.12 |\n")
    assert Column("n", title="", unit="s").head() == " s"
    assert Column("n", unit="s").head("s") == "n"


def core_tables() -> Iterator[Any]:
    for module in pkgutil.walk_packages(core.__path__, "detector.core."):
        if ".terminal." in module.name or ".analysis." in module.name:
            for name, value in vars(importlib.import_module(module.name)).items():
                if isinstance(value, tuple) and value and isinstance(value[0], Column):
                    yield pytest.param(value, id=f"{module.name}:{name}")


@pytest.mark.parametrize("columns", list(core_tables()))
def test_columns_are_dropped_one_at_a_time(columns: tuple[Column, ...]) -> None:
    leave = sorted(one.out for one in columns if one.out)
    assert leave == [at + 1 for at in range(len(leave))]
