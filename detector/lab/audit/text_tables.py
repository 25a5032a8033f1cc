"""Read tables of plain text: drawn with lines or boxes, or with columns aligned by spaces.

Such tables come from terminals and logs (tabulate, rich, prettytable, pandas, nsys stats,
torch.profiler). A rule (a line of dashes) ends the heading. If no bars separate the columns, each
run of dashes in the rule spans a column. If the rule has fewer than two runs, columns are separated
wherever all lines of the table have two spaces or more.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

Grid = list[list[str]]
Span = tuple[int, int | None]  # first and last position of a column; None: the end of the line

BOX = "".join(map(chr, range(0x2500, 0x2580)))  # Unicode's characters for drawing boxes
BARS = "│┃║╎┆┇┊┋"
RULE_CHARACTERS = frozenset(f"{BOX}|+:=- ")
_DASHES = re.compile(r"[=\-─━═╌┄┈]{2,}")
_WORDS = re.compile(r"\S+(?: \S+)*")
_GAP = re.compile(r" {2,}")


def parse_text_tables(text: str) -> Iterator[tuple[int, Grid]]:
    """Yield each table and the number of its first line. The first row is the heading. All rows
    have as many cells as the heading."""
    bars = str.maketrans(BARS, "|" * len(BARS))
    lines = [line.translate(bars).expandtabs().rstrip() for line in text.splitlines()]
    for number, block in _split_blocks(lines):
        is_barred = any("|" in line for line in block if not is_rule(line))
        grid = _parse_barred(block) if is_barred else _parse_spaced(block)
        if len(grid) > 1 and len(grid[0]) > 1 and re.search(r"\d", str(grid[1:])):
            yield number, grid


def is_rule(line: str) -> bool:
    """Return whether a line only separates parts of a table."""
    return RULE_CHARACTERS.issuperset(line) and _DASHES.search(line) is not None


def _split_blocks(lines: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
    """Yield runs of lines that are not empty, with the number of the run's first line."""
    block: list[str] = []
    for number, line in enumerate([*lines, ""], 1):
        if line:
            block.append(line)
        elif block:
            yield number - len(block), block
            block = []


def _split_at_rules(block: Sequence[str]) -> list[list[str]]:
    rules = [-1, *(at for at, line in enumerate(block) if is_rule(line)), len(block)]
    return [part for a, b in pairwise(rules) if (part := list(block[a + 1 : b]))]


def _parse_barred(block: Sequence[str]) -> Grid:
    parts = _split_at_rules([line for line in block if "|" in line or is_rule(line)])
    if len(parts) < 2:  # no rule ends the heading
        return []
    grid = [_join_lines(list(map(_split_cells, parts[0])))]
    for part in parts[1:]:
        for at, line in enumerate(part):
            cells = _split_cells(line)
            # If rules separate rows, a line whose first cell is empty continues the row above.
            if at and len(parts) > 2 and not cells[0]:
                grid[-1] = _join_lines([grid[-1], cells])
            else:
                grid.append(cells)
    width = len(grid[0])
    return [[*row, *[""] * width][:width] for row in grid]


def _split_cells(line: str) -> list[str]:
    inside = line.strip().removeprefix("|").removesuffix("|")
    return [cell.strip() for cell in inside.split("|")]


def _join_lines(rows: Sequence[Sequence[str]]) -> list[str]:
    return [" ".join(filter(None, words)) for words in zip(*rows, strict=False)]


def _parse_spaced(block: Sequence[str]) -> Grid:
    rules = [at for at, line in enumerate(block) if is_rule(line)]
    if len(rules) > 2 and rules[0] == 0:  # the table ends at its closing rule
        block = block[: rules[-1]]
    parts = _split_at_rules(block)
    lines = [line for part in parts for line in part]
    starts = [match.start() for match in _DASHES.finditer(block[rules[0]])] if rules else []
    if len(starts) < 2:
        starts = _find_columns(lines)
        if any(len(_WORDS.findall(lines[0][a:b])) > 1 for a, b in pairwise([*starts, None])):
            return []  # the heading has other columns than the rows
    spans: list[Span] = [*pairwise(starts), (starts[-1], None)]
    rows = [[line[start:end].strip() for start, end in spans] for line in lines]
    titles = len(parts[0]) if len(parts) > 1 else 1
    return [_join_lines(rows[:titles]), *rows[titles:]]


def _find_columns(lines: Sequence[str]) -> list[int]:
    """Return where columns start: at 0 and after each gap that all lines share."""
    used = bytearray(b" " * max(map(len, lines), default=0))
    for line in lines:
        for words in _WORDS.finditer(line):
            used[words.start() : words.end()] = b"x" * len(words[0])
    return [0, *(gap.end() for gap in _GAP.finditer(used.decode()) if gap.start())]
