"""Print a comparison (tables of speed, of cost and of accuracy, then the winners), or the stages of
``compare --where``."""

from __future__ import annotations

from rich.text import Text

from detector.core.errors.text import counted
from detector.core.session.measured import Interval, Metric
from detector.core.tables import Column, Table
from detector.core.terminal.console import SafeConsole
from detector.core.terminal.tables import print_pieces, table_fits
from detector.lab.analysis.compare import ROUNDS_FOR_A_WINNER
from detector.lab.analysis.statistics import fewest_rounds
from detector.lab.report.side_by_side import METRIC_TITLES, side_by_side
from detector.lab.session.comparison import METRICS, ComparedLabels, Comparison, Decision, Row
from detector.lab.session.evaluation import Figure
from detector.lab.session.where import StageDifference, Where

FEW_CLASSES = 4  # up to this many classes get a column each
MEANINGLESS = "random weights: boxes and agreement are meaningless"


def print_comparison(
    console: SafeConsole, document: Comparison, would_take: str | None = None
) -> None:
    """Print all tables. ``would_take``: what ``--engine auto`` would choose with this result."""
    bounds = table_fits(console, _speeds(document, bounds=True).without("batch"))
    costs = Table("costs", (*_named(document), *COSTS), document.rows)
    pieces: list[Table | str] = [_speeds(document, bounds), costs]
    if document.models:
        pieces[0] = side_by_side(document)
    if document.labels is not None and any(row.ap for row in document.rows):
        pieces.append(_accuracies(document, document.labels))
    pieces += [f"{row.name}: {row.error}" for row in document.rows if row.error is not None]
    pieces += _notes(document)
    console.print(Text(_title(document), style="bold"))
    print_pieces(console, pieces)
    why = "no winner" if document.comparable is False else "warning"
    last = [f"{why}: {warning}" for warning in document.warnings]
    decisions = _decisions(document)
    last += _winners(document, decided=bool(decisions)) if document.baseline else []
    for line in decisions:
        console.print(Text(line))
    for line in last:
        console.print(Text(line, style="bold"))
    if document.usual is not None:
        why = f" ({document.why_usual})" if document.why_usual else ""
        console.print(Text(f"a plain run uses: {document.usual}{why}"))
    if would_take is not None:
        console.print(Text(f"--engine auto would use: {would_take.partition(':')[0]}"))


def _title(document: Comparison) -> str:
    parts = [str(", ".join(document.models) or document.model or "no model could be opened")]
    if document.model_input and not document.models:
        height, width = document.model_input
        parts.append(f"input {width}x{height}")
    if document.video:
        video = document.video
        parts.append(f"{video.path} ({video.width}x{video.height})")
    if document.frames:
        parts.append(f"{counted(document.rounds, 'round')} of {counted(document.frames, 'frame')}")
    return ", ".join(parts)


def _rates(metric: Metric, bounds: bool) -> tuple[Column, Column]:
    return (
        Column(
            metric,
            METRIC_TITLES[metric],
            value=lambda row: _interval(row.fps[metric], bounds),
            right=True,
            whole=True,
        ),
        Column(f"{metric}_ratio", "ratio", value=lambda row: _ratio(row.ratio[metric]), right=True),
    )


def _speeds(document: Comparison, bounds: bool) -> Table:
    """Return the table of speeds. ``bounds``: show intervals, which need a wide terminal."""
    columns = [*VARIANT, *(one for metric in METRICS for one in _rates(metric, bounds))]
    agreed = Column("agreement", value=lambda row: _agreement(document, row), right=True, out=9)
    interval = f" [{document.interval}]" if bounds else ""
    caption = f"median of the rounds{interval}; ratio: to {document.baseline} in the same round"
    shown = caption if document.baseline else ""
    return Table("speeds", (*columns, agreed), document.rows, caption=shown)


VARIANT = (Column("engine"), Column("precision"), Column("batch", out=4))
COSTS = (
    *VARIANT,
    Column("executed", value=lambda row: _executed_text(row), whole=True),
    Column("agreement.mean_iou", "mean IoU", ".3f", out=6),
    Column("agreement.mean_score_diff", "score diff", ".4f", out=2),
    Column("memory_mb", "peak", ".0f", "MB"),
    Column("load_s", "load", ".2f", "s", out=3),
    Column("build_s", "build", ".2f", "s", out=1),
)


MODEL = Column("model", value=lambda row: None if row.model is None else row.model.name)


def _named(document: Comparison) -> tuple[Column, ...]:
    return (MODEL,) if document.models else ()


def _accuracies(document: Comparison, labels: ComparedLabels) -> Table:
    classes = labels.classes or ()
    columns = [
        *_named(document),
        *VARIANT,
        Column("ap.ap50", "AP50", ".3f"),
        Column("interval", "95 %", value=lambda row: row.ap and _bounds(row.ap.ap50_interval)),
        Column("ap.ap", "AP", ".3f"),
    ]
    if len(classes) <= FEW_CLASSES:
        columns += map(_class_column, classes)
    caption = (
        f"against {labels.path}: {counted(labels.pictures, 'frame')}, "
        f"{counted(labels.boxes, 'box')}; in a separate pass, with scores from "
        f"{labels.conf:g} and NMS IoU {labels.iou:g}"
    )
    return Table("accuracies", columns, document.rows, caption=caption)


def _class_column(name: str) -> Column:
    return Column(
        f"ap50_{name}",
        f"AP50 {name}",
        ".3f",
        value=lambda row: (
            row.ap.per_class[name].ap50 if row.ap and name in row.ap.per_class else None
        ),
    )


def _bounds(interval: tuple[Figure, Figure]) -> str | None:
    low, high = interval
    return None if low is None or high is None else f"{low:.3f}..{high:.3f}"


def _executed_text(row: Row) -> str:
    if row.error is not None:
        return "failed"
    if row.precision_effect:
        return f"changed nothing: {row.precision_text}"
    return row.precision_text or "unknown"


def _notes(document: Comparison) -> list[str]:
    lines = [
        f"agreement with {document.reference}: 2 x matched boxes / all boxes of both, at IoU 0.5"
    ]
    if document.random_weights is not None:
        lines.append(f"note: {MEANINGLESS}")
    rows_by_note: dict[str, list[str]] = {}
    for row in document.rows:
        for note in row.notes:
            rows_by_note.setdefault(note, []).append(row.name)
    if document.labels is not None:
        lines += [f"note: {note}" for note in document.labels.notes]
    for note, names in rows_by_note.items():
        of_rows = "" if len(names) == len(document.rows) else f" ({', '.join(names)})"
        lines.append(f"note{of_rows}: {note}")
    return lines if document.baseline else lines[1:]


def _decisions(document: Comparison) -> list[str]:
    noise = document.noise
    if noise is None or document.baseline is None or document.comparable is None:
        return []
    decided = [
        (metric, row.name, verdict)
        for metric in METRICS
        for row in document.rows
        if (verdict := row.verdict.get(metric)) is not None
    ]
    if not decided:
        return []
    names = list(dict.fromkeys(name for _, name, _ in decided))
    least, rounds = fewest_rounds(len(names), noise.share), counted(noise.rounds, "round")
    few = list(dict.fromkeys(name for _, name, verdict in decided if verdict.low is None))
    which = "these rows" if few == names else f"{', '.join(few)} from {document.baseline}"
    few = few if document.comparable else []  # more rounds do not make rows comparable
    lines = [f"{rounds} cannot separate {which}; use --rounds {least} or more"] if few else []
    lines += [
        f"{METRIC_TITLES[metric]}: {name} {_decision(verdict, document.baseline)}"
        for metric, name, verdict in decided
        if verdict.low is not None
    ]
    smallest = [value for metric in METRICS if (value := noise.smallest.get(metric)) is not None]
    how = "measured: the first row ran twice" if noise.measured else "assumed, not measured"
    power = f"; enough to detect a difference of {max(smallest):.1%} or more" if smallest else ""
    why = {
        "rounds": "",
        "decided": ", every row decided",
        "most": ", the maximum of --rounds auto",
        "time": ", until time ran out",
    }[noise.stopped]
    share = max(noise.floor[metric] for metric in METRICS)
    rates = [row.fps[metric] for row in document.rows for metric in METRICS]
    wider = any(one and one.high - one.low > share * one.median for one in rates)
    noise_text = f"noise {share:.1%} ({how}); " if noise.measured or not wider else ""
    lines.append(f"{noise_text}{rounds}{why}{power}")
    return lines


def _decision(verdict: Decision, baseline: str) -> str:
    assert verdict.low is not None
    assert verdict.high is not None
    assert verdict.largest is not None
    between = f"[{verdict.low - 1:+.1%} .. {verdict.high - 1:+.1%}]"
    if verdict.outcome in ("faster", "slower"):
        return f"is {verdict.outcome} than {baseline} by {abs(verdict.ratio - 1):.1%} {between}"
    if verdict.outcome == "same":
        return f"has no difference larger than {verdict.largest:.1%} from {baseline}"
    return f"may equal {baseline}: no difference larger than {verdict.largest:.1%} {between}"


def _winners(document: Comparison, decided: bool) -> list[str]:
    if all(document.fastest[metric] is None for metric in METRICS):
        if document.comparable is False:
            return []  # the warnings say why
        if len([row for row in document.rows if row.error is None]) < 2:
            return ["only one row ran, so there is nothing to compare"]
        if document.rounds < ROUNDS_FOR_A_WINNER:
            return (
                [] if decided else [f"too few rounds; use --rounds {ROUNDS_FOR_A_WINNER} or more"]
            )
    # After too few rounds, naming the fastest rows would seem to rank them, so none is named.
    few = any(one and one.low is None for row in document.rows for one in row.verdict.values())
    return [_sentence(document, one) for one in METRICS if document.fastest[one] or not few]


def _sentence(document: Comparison, metric: Metric) -> str:
    name, what = document.fastest[metric], METRIC_TITLES[metric]
    if name is None:
        near = document.contenders.get(metric, ())
        return f"{what}: no difference beyond the noise: {', '.join(near)}"
    row = next(row for row in document.rows if row.name == name)
    text = f"{what}: {name} is fastest"
    ratio, bounds = row.ratio[metric], row.ratio_interval[metric]
    if ratio is not None and bounds is not None:
        low, high = bounds
        text += f", {ratio:.2f}x [{low:.2f} .. {high:.2f}] of {document.baseline}"
    matched = row.agreement.matched if row.agreement is not None else None
    if matched is not None and matched < document.budget:
        text += f", but its agreement {matched:.3f} is below the --budget of {document.budget:g}"
    return text


def _agreement(document: Comparison, row: Row) -> str:
    matched = row.agreement.matched if row.agreement is not None else None
    if matched is None:
        return "-"
    return f"({matched:.3f})" if document.random_weights is not None else f"{matched:.3f}"


def _interval(rate: Interval | None, bounds: bool) -> str:
    if rate is None:
        return "-"
    between = f" [{_fps(rate.low)}..{_fps(rate.high)}]" if bounds else ""
    return f"{_fps(rate.median)}{between}"


def _fps(value: float) -> str:
    return f"{value:.1f}" if value < 1000 else f"{value:.0f}"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}x"


def _says(one: StageDifference) -> str:
    if one.untold is not None:
        return "not compared"
    return "DIFFERS" if one.differs else "agrees"


STAGES = (
    Column("stage"),
    Column("what", "compared", longest=40, out=3),
    Column("says", "", value=_says, whole=True),
    Column("max", "largest", ".4g", out=2),
    Column("rms", form=".4g", out=4),
    Column("relative", "relative to A", ".2%", out=1),
    Column("beyond", "beyond rounding", ".1%", out=5),
    Column("kind", value=lambda one: one.kind or "", whole=True),
)


def print_where(console: SafeConsole, document: Where) -> None:
    title = f"A: {document.a}; B: {document.b}; each stage with the same input on both sides"
    rows = Table("where", STAGES, document.stages, title)
    lines = [f"note: {one.stage}: {one.untold}" for one in document.stages if one.untold]
    if document.probes:
        lines.append(f"checked {counted(len(document.probes), 'tensor')} inside the network")
    print_pieces(console, [rows, *lines, document.verdict])
