"""Compare models in one table, written as CSV, Markdown or LaTeX."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from detector.core.errors import UsageError
from detector.core.errors.text import counted
from detector.core.errors.writing import write_whole
from detector.core.session.measured import Interval, Metric
from detector.core.tables import Column, Rounded, Table, csv_text, latex_text, markdown_text
from detector.lab.analysis.noise import decimals_of
from detector.lab.session.comparison import Comparison, Row

METRIC_TITLES: dict[Metric, str] = {"inference": "inference FPS", "end_to_end": "end-to-end FPS"}


def _count(name: str, unit: float) -> Callable[[Row], float | None]:
    def of(row: Row) -> float | None:
        value = None if row.model is None else getattr(row.model, name)
        return None if value is None else value / unit

    return of


def _input_text(row: Row) -> str | None:
    return None if row.model is None else f"{row.model.input[1]}x{row.model.input[0]}"


def _rounded(of: Callable[[Row], Interval | None], which: str, least: int) -> Callable[[Row], Any]:
    def value(row: Row) -> Rounded | None:
        if (rate := of(row)) is None:
            return None
        return Rounded(getattr(rate, which), max(least, decimals_of(rate)))

    return value


def _rates(metric: Metric, out: int) -> Iterator[Column]:
    for which, word, place in (
        ("median", "", 0),
        ("low", " lowest", out),
        ("high", " highest", out),
    ):
        key = f"{metric}_fps" if which == "median" else f"{metric}_fps_{which}"
        value = _rounded(lambda row: row.fps[metric], which, least=1)
        yield Column(key, METRIC_TITLES[metric] + word, value=value, out=place)


def _p50(row: Row) -> Interval | None:
    return (row.latency_ms or {}).get("p50")


def _p90(row: Row) -> Rounded | None:
    """Round p90 to the decimals of p50: short rounds have no p90, so its noise is unknown."""
    p50, p90 = _p50(row), (row.latency_ms or {}).get("p90")
    return None if p50 is None or p90 is None else Rounded(p90.median, decimals_of(p50))


def _outcome(row: Row) -> str | None:
    """Compare with the first row: faster, slower, same, or undecided after these rounds."""
    decision = row.verdict.get("inference")
    return None if decision is None else decision.outcome.replace("open", "undecided")


COLUMNS = (
    Column("model", value=lambda row: None if row.model is None else row.model.name, whole=True),
    Column("engine"),
    Column("precision", out=17),
    Column("batch", out=7),
    Column("input", value=_input_text, out=6),
    Column("parameters_m", "parameters", ".2f", "M", value=_count("parameters", 1e6), out=13),
    Column("size_mb", "size", ".2f", "MB", value=_count("size_bytes", 1e6), out=14),
    Column("size_mib", "size", ".2f", "MiB", value=_count("size_bytes", 2**20), out=4),
    Column("gmacs", "GMACs", ".3f", value=_count("macs", 1e9), out=5),
    Column("gflops", "GFLOPs", ".3f", value=_count("macs", 0.5e9), out=15),
    Column("latency_p50_ms", "p50", unit="ms", value=_rounded(_p50, "median", 0), out=16),
    Column("latency_p90_ms", "p90", unit="ms", value=_p90, out=9),
    *_rates("inference", 2),
    *_rates("end_to_end", 1),
    Column("outcome", "than the first", value=_outcome, out=11),
    Column(
        "share_of_roof", "of roofline", ".1%", value=lambda row: row.roof and row.roof.share, out=10
    ),
    Column("bound", value=lambda row: row.roof and row.roof.bound, out=8),
    Column(
        "agreement", form=".3f", value=lambda row: row.agreement and row.agreement.matched, out=3
    ),
    Column("ap50", "AP50", ".3f", value=lambda row: row.ap and row.ap.ap50, out=12),
    Column("ap", "AP", ".3f", value=lambda row: row.ap and row.ap.ap, out=18),
    Column("error", value=lambda row: row.error),
)
# Columns that are omitted if no row has a value.
OPTIONAL = (
    *("latency_p50_ms", "latency_p90_ms"),
    *("outcome", "agreement", "ap50", "ap", "share_of_roof", "bound", "error"),
)


def side_by_side(document: Comparison) -> Table:
    caption = (
        f"median, lowest and highest of {counted(document.rounds, 'round')} in random order; "
        "size: the graph that the engine received; p50, p90: one network call with a whole "
        f"batch, over all rounds ({_calls(document)}); agreement: with {document.reference}"
        + ("; not comparable, see the warnings of compare" if document.comparable is False else "")
    )
    models = Table("models", COLUMNS, document.rows, caption=caption)
    empty = [one.key for one in COLUMNS if all(one.of(row) is None for row in document.rows)]
    return models.without(*(key for key in empty if key in OPTIONAL))


def _calls(document: Comparison) -> str:
    counts = sorted({row.latency_calls for row in document.rows if row.latency_calls})
    return " to ".join(map(str, counts[:1] + counts[1:][-1:])) + " calls"


WRITERS: dict[str, Callable[[Table], str]] = {
    ".csv": csv_text,
    ".md": markdown_text,
    ".tex": latex_text,
}


def check_tables(paths: Sequence[str]) -> None:
    """Raise UsageError for an unknown suffix or a duplicate. Call this before measuring."""
    for path in paths:
        if Path(path).suffix.lower() not in WRITERS:
            raise UsageError(f"--table {path}: the file name must end with {', '.join(WRITERS)}")
    if len({*map(Path, paths)}) < len(paths):
        raise UsageError(f"--table {','.join(paths)}: has a duplicate; list each once")


def write_tables(table: Table, paths: Iterable[str]) -> Iterator[Path]:
    for path in map(Path, paths):
        write_whole(path, WRITERS[path.suffix.lower()](table).encode())
        yield path
