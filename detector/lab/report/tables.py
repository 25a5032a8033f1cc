"""Write facts of a session as CSV files."""

from __future__ import annotations

from dataclasses import replace

from detector.core.tables import Column, Table, csv_text
from detector.lab.analysis.loop.activities import step_rows
from detector.lab.report.parts.network import shape_text
from detector.lab.report.parts.resources import ENERGY
from detector.lab.session.network import LayersFacts
from detector.lab.session.passes import EnergyFacts
from detector.lab.session.read import SavedSession

STEPS = (
    Column("step", "stage"),
    Column("total", form=".2f"),
    Column("count", "calls"),
    *(Column(name, form=".2f") for name in ("avg", "std", "min", "max")),
    Column("share_of_stages", "of all stages", ".1%", value=lambda row: row.share),
    *(Column(name, form=".2f") for name in ("p50", "p90", "p99")),
)

TIMES = ("total", "avg", "std", "min", "max", "p50", "p90", "p99")

LAYER_TIMER = (
    Column("layer", value=lambda row: row.name),
    *(Column(name) for name in ("type", "calls", "ms", "share", "order", "block")),
    Column("shape", value=shape_text),
    *(Column(name) for name in ("parameters", "macs", "flops", "bytes", "precision")),
    *(Column(name) for name in ("gflops_s", "gbytes_s")),
    Column("flops_per_byte", value=lambda row: row.intensity),
    Column("share_of_roof", value=lambda row: row.utilisation),
    Column("bound"),
)


def csv_files(session: SavedSession) -> dict[str, str]:
    """Return file name -> CSV for the measured facts. Times of stages and layers are in ms."""
    named = [
        replace(one, key=f"{one.key}_ms", value=one.of) if one.key in TIMES else one
        for one in STEPS
    ]
    tables = {"steps_timer.csv": Table("steps", named, step_rows(session.spans))}
    if (layers := session.facts(LayersFacts)) is not None:
        tables["layer_timer.csv"] = Table("layers", LAYER_TIMER, layers.rows)
    if (energy := session.facts(EnergyFacts)) is not None:
        tables["energy.csv"] = Table("energy", ENERGY, [*energy.rows, *energy.samples])
    return {name: csv_text(table) for name, table in tables.items()}
