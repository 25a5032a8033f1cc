"""Read tables from files of any origin: CSV, and every table of Markdown or plain text."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

from detector.core.errors import SourceError, UsageError
from detector.core.errors.reading import read_text
from detector.core.errors.text import counted
from detector.core.errors.yaml_parsing import parse_yaml
from detector.lab.audit.columns import clean
from detector.lab.audit.tables import AuditTable, make_table
from detector.lab.audit.text_tables import is_rule, parse_text_tables

SUFFIXES = (".csv", ".tsv", ".md", ".markdown", ".txt")
MOST_BYTES = 4 << 20
MOST_ROWS, MOST_COLUMNS, LONGEST_CELL = 20_000, 200, 2_000
MOST_TABLES = 200
LONGEST_LINE = 64 << 10
DELIMITERS = "\t;,"
Kind = Literal["csv", "markdown", "text"]
CSV: Kind
MARKDOWN: Kind
TEXT: Kind
CSV, MARKDOWN, TEXT = "csv", "markdown", "text"
Titles = Mapping[str, str | None]


def read_titles(path: str) -> dict[str, str | None]:
    """Read a file of --columns. It maps a title to a clearer title; null skips the column."""
    content = parse_yaml(read_text(path, "column titles"), path)
    if not isinstance(content, dict) or not all(
        isinstance(value, str | None) for value in content.values()
    ):
        raise UsageError(f'{path}: write one title per line, such as "Lat.: latency (ms)"')
    return {str(title): value for title, value in content.items()}


def read_tables(path: str | Path, titles: Titles | None = None) -> list[AuditTable]:
    """Read the tables of a file. Raises SourceError if it has none."""
    suffix = Path(path).suffix.lower()
    text = read_text(
        path,
        "a table",
        limit=MOST_BYTES,
        error=SourceError,
        cure="give a CSV or Markdown file, or a run's folder",
    ).removeprefix("\ufeff")
    kind = {".md": MARKDOWN, ".markdown": MARKDOWN, ".csv": CSV, ".tsv": CSV}.get(suffix)
    return parse_tables(text, Path(path).name, kind, titles=titles)


def parse_tables(
    text: str, name: str, kind: Kind | None = None, *, titles: Titles | None = None
) -> list[AuditTable]:
    """Parse tables in ``text``. ``kind``: None detects it. Raises SourceError if none is found."""
    if match := re.search("[\x00-\x08\x0b\x0e-\x1f\x7f]", text):
        line = text.count("\n", 0, match.start()) + 1
        code = ord(match[0])
        raise SourceError(f"{name}:{line}: the character {code:#04x} cannot be in a table")
    kind = kind or _find_kind(text.splitlines())
    if kind == CSV:
        grids: Iterable[tuple[str, list[list[str]], int]] = [(name, _parse_csv(text, name), 0)]
    else:
        grids = (_parse_markdown if kind == MARKDOWN else _parse_text)(text, name)
    tables: list[AuditTable] = []
    for title, grid, first_line in grids:
        if len(tables) == MOST_TABLES:
            raise SourceError(f"{name}: more than {MOST_TABLES} tables; split the file")
        tables.append(replace(_make_table(title, grid, titles or {}), first_line=first_line))
    if not tables:
        raise SourceError(
            f"{name}: no table found; a Markdown table has a line such as |---|---|; a plain-text "
            "table has lines of dashes, or at least two spaces between columns"
        )
    return tables


def _find_kind(lines: list[str]) -> Kind:
    if any(map(_is_separator, lines[:2000])):
        return MARKDOWN
    first = next((line for line in lines if line.strip()), "")
    has_delimiter = any(delimiter in first for delimiter in DELIMITERS)
    return CSV if has_delimiter and not any(map(is_rule, lines[:2000])) else TEXT


def _parse_text(text: str, name: str) -> Iterator[tuple[str, list[list[str]], int]]:
    for number, grid in parse_text_tables(text):
        if any(len(cell) > LONGEST_CELL for row in grid for cell in row):
            raise SourceError(f"{name}:{number}: a cell of more than {LONGEST_CELL} letters")
        yield f"{name}:{number}", grid, 0


def _make_table(name: str, grid: list[list[str]], titles: Titles) -> AuditTable:
    head, rows = grid[0], grid[1:]
    if len(head) > MOST_COLUMNS or len(rows) > MOST_ROWS:
        raise SourceError(
            f"{name}: {len(rows)} rows of {len(head)} columns; a table has at most {MOST_ROWS} "
            f"rows of {MOST_COLUMNS} columns: split it"
        )
    used = [at for at, title in enumerate(head) if titles.get(clean(title), "") is not None]
    new_titles = [titles.get(clean(head[at])) or head[at] for at in used]
    table = make_table(name, new_titles, [[row[at] for at in used] for row in rows])
    return replace(table, given=frozenset(title for title in map(clean, head) if title in titles))


def _parse_csv(text: str, name: str) -> list[list[str]]:
    first = next((line for line in text.splitlines() if line.strip()), "")
    delimiter = max(DELIMITERS, key=first.count)
    if delimiter not in first:
        raise SourceError(f"{name}: its first line has only one column; a table needs at least two")
    try:
        grid = [
            row
            for row in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
            if any(cell.strip() for cell in row)
        ]
    except csv.Error as error:
        raise SourceError(f"{name}: not a CSV file: {error}") from error
    width = len(grid[0])
    for number, row in enumerate(grid[1:], 2):
        if len(row) != width:
            raise SourceError(
                f"{name}: row {number} has {counted(len(row), 'cell')}, the heading has {width}; "
                "quote cells that contain the separator"
            )
        if any(len(cell) > LONGEST_CELL for cell in row):
            raise SourceError(
                f"{name}: row {number} has a cell of more than {LONGEST_CELL} letters"
            )
    if len(grid) < 2:
        raise SourceError(f"{name}: it has a heading but no rows")
    return grid


def _parse_markdown(text: str, name: str) -> Iterator[tuple[str, list[list[str]], int]]:
    lines = text.splitlines()
    heading, number, at, fenced = "", 0, 0, False
    while at < len(lines):
        line = lines[at]
        fenced ^= line.lstrip().startswith("```")
        if not fenced and re.match(r"#{1,6}\s", line):
            heading = clean(line.lstrip("# ")).rstrip(": ")[:60]
        if fenced or "|" not in line or at + 1 == len(lines) or not _is_separator(lines[at + 1]):
            at += 1
            continue
        grid, first = [_split_cells(line)], at + 1
        at += 2
        while at < len(lines) and "|" in lines[at] and lines[at].strip():
            cells = _split_cells(lines[at])
            if any(len(cell) > LONGEST_CELL for cell in cells):
                raise SourceError(f"{name}:{at + 1}: a cell of more than {LONGEST_CELL} letters")
            if len(cells) > len(grid[0]) and any(cells[len(grid[0]) :]):
                raise SourceError(
                    f"{name}:{at + 1}: {len(cells)} cells in a table of {len(grid[0])} columns; "
                    r"write \| for a | inside a cell"
                )
            grid.append([*cells, *[""] * len(grid[0])][: len(grid[0])])
            at += 1
        if len(grid) > 1 and len(grid[0]) > 1:
            number += 1
            suffix = f": {heading}" if heading else f": table {number}"
            yield f"{name}:{first}{suffix}", grid, first + 2


def _is_separator(line: str) -> bool:
    """Return whether this is the line under a table's heading, such as ``|---|:--:|``."""
    plain = line.strip()
    if "|" not in plain or len(plain) > LONGEST_LINE or not set(plain) <= set("|-: "):
        return False
    return all("-" in cell for cell in plain.strip("|").split("|"))


def _split_cells(line: str) -> list[str]:
    inside = line.strip().removeprefix("|")
    inside = inside[:-1] if inside.endswith("|") and not inside.endswith("\\|") else inside
    return [
        cell.replace("\\|", "|").strip()
        for cell in re.findall(r"((?:\\.|[^|\\])*)(?:\||$)", inside)
    ][: inside.replace("\\|", "").count("|") + 1]
