"""Place the whole model on the roofline, with the peaks measured by the pass "layers"."""

from __future__ import annotations

from dataclasses import replace

from detector.core.analysis.verdict import describe_others
from detector.core.errors.machine import NotHereError
from detector.lab.analysis.layers import place_model, place_on_sheet
from detector.lab.profile.base import Occasion, Pass
from detector.lab.profile.layers import ALONE, measure_layers
from detector.lab.session.network import LayersFacts, RooflineFacts
from detector.lab.session.passes import PassRecord


def place_on_roofline(occasion: Occasion) -> RooflineFacts:
    layers = _layers_of(occasion)
    sheet = occasion.sheet_peaks(layers.precision)
    peaks = layers.peaks or sheet
    if peaks is None:
        raise NotHereError(
            f"peaks are measured on the CPU, but the network ran on {layers.device}; give "
            "the peaks of its data sheet with --peak and --bandwidth"
        )
    document = occasion.plain.document
    others = describe_others(document.verdict.others_cores, document.cpu.cores)
    return replace(
        place_model(layers.rows, peaks, layers.forward_ms, layers.batch),
        uncounted=layers.uncounted,
        doubts=[others] if others and layers.device == "cpu" else [],
        sheet=None
        if sheet is None
        else place_on_sheet(layers.rows, layers.precision, sheet, layers.forward_ms),
    )


def _layers_of(occasion: Occasion) -> LayersFacts:
    record = occasion.records.get("layers") or PassRecord(
        available=True, facts=measure_layers(occasion)
    )
    if record.ran is not None:
        occasion.executions += record.ran.measured or [record.ran.execution]
    if not isinstance(record.facts, LayersFacts):
        raise NotHereError(f'the pass "layers" has no result: {record.reason}')
    return record.facts


PASS = Pass(
    order=41,
    what="compute and bandwidth, as shares of measured peaks",
    facts=RooflineFacts,
    run=place_on_roofline,
    undisturbed='uses the results of "layers"',
    varies=ALONE,
)
