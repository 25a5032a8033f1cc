"""Tables of plain text, as terminals and logs show them."""

import pytest

from detector.core.errors import SourceError
from detector.lab.audit.case import Case, audit
from detector.lab.audit.read import parse_tables

HEADING, ROWS = ["model", "latency (ms)", "FPS"], [["a b", "6.4", "156.2"], ["c", "14.1", "70.9"]]
# Output of tabulate 0.9 (grid, simple, plain, orgtbl) and of rich 14 (HEAVY_HEAD, SIMPLE).
TABLES = {
    "grid": """
+---------+----------------+-------+
| model   |   latency (ms) |   FPS |
+=========+================+=======+
| a b     |            6.4 | 156.2 |
+---------+----------------+-------+
| c       |           14.1 |  70.9 |
+---------+----------------+-------+
""",
    "simple": """
model      latency (ms)    FPS
-------  --------------  -----
a b                 6.4  156.2
c                  14.1   70.9
""",
    "plain": """
model      latency (ms)    FPS
a b                 6.4  156.2
c                  14.1   70.9
""",
    "orgtbl": """
| model   |   latency (ms) |   FPS |
|---------+----------------+-------|
| a b     |            6.4 | 156.2 |
| c       |           14.1 |  70.9 |
""",
    "heavy": """
             Bench
┏━━━━━━━┳━━━━━━━━━━━━━━┳━━━━━━━┓
┃ model ┃ latency (ms) ┃ FPS   ┃
┡━━━━━━━╇━━━━━━━━━━━━━━╇━━━━━━━┩
│ a b   │ 6.4          │ 156.2 │
│ c     │ 14.1         │ 70.9  │
└───────┴──────────────┴───────┘
""",
    "one line of dashes": """
  model   latency (ms)   FPS
 ────────────────────────────────
  a b     6.4            156.2
  c       14.1           70.9
""",
}


@pytest.mark.parametrize("name", TABLES)
def test_table_drawn_in_text_is_read(name) -> None:
    (table,) = parse_tables(f"Results, of today\n{TABLES[name]}\nmore text\n", "log.txt", "text")
    assert [column.title for column in table.columns] == HEADING
    assert list(map(list, zip(*(column.texts for column in table.columns), strict=True))) == ROWS
    assert table.name == "log.txt:3"
    assert not table.unread


def test_format_of_a_table_is_recognised() -> None:
    for name, text in TABLES.items():
        (table,) = parse_tables(text, "log.txt")
        assert len(table.columns) == 3, name


def test_dashes_and_text_below_a_table_are_not_rows() -> None:
    text = """
-----  ----------  ----------
name   self time   total time
-----  ----------  ----------
infer      62.4us     134.7ms
read        1.5ms       1.5ms
-----  ----------  ----------
total time: 136.2 ms
"""
    (table,) = parse_tables(text, "profile.txt")
    times = table.columns[2]
    assert [one.value for one in times.known] == pytest.approx([0.1347, 0.0015])
    assert [one.value for one in table.columns[1].known] == pytest.approx([62.4e-6, 1.5e-3])


def test_a_cell_over_two_lines_is_one_cell() -> None:
    row = "| c       |           14.1 |  70.9 |\n"
    text = TABLES["grid"].replace(row, row + "|         |         (mean) |       |\n")
    (table,) = parse_tables(text, "log.txt")
    assert table.columns[1].texts == ["6.4", "14.1 (mean)"]


def test_columns_that_cannot_be_separated_are_refused() -> None:
    with pytest.raises(SourceError, match="no table found"):
        parse_tables("model  ms   FPS\n    a 1.5 400.2\n    b 2.5 300.1\n", "log.txt")


def test_audit_checks_the_tables_of_a_log() -> None:
    text = "+---+---+\n| latency (ms) | FPS |\n+---+---+\n| 10.0 | 50.0 |\n+---+---+\n"
    found = audit(Case(parse_tables(text, "log.txt"))).findings
    assert any("FPS" in finding.evidence for finding in found)
