"""Layers under a roofline of 100 GFLOP/s and 10 GB/s, whose ridge is at 10 FLOPs per byte."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from detector.core.session.codec import from_builtins
from detector.lab.analysis.layers import COMPUTE, LAUNCH, MEMORY, NEITHER, place_layer, place_model
from detector.lab.profile.roofline import place_on_roofline
from detector.lab.report.parts.network import describe_roofline
from detector.lab.session.network import LayerRow, LayersFacts, Peaks
from detector.lab.session.passes import PassRecord
from tests.lab.report.sessions import PASSES
from tests.session.documents import DOCUMENT, document

PEAKS = Peaks(gflops_s={"fp32": 100.0, "int8": 400.0}, bandwidth_gbytes_s=10.0)


def layer(ms, mflops, kbytes, precision="fp32"):
    return LayerRow(
        name="x",
        type="Conv",
        ms=ms,
        share=1.0,
        macs=int(mflops * 5e5),
        flops=int(mflops * 1e6),
        bytes=int(kbytes * 1e3),
        precision=precision,
    )


CASES = [
    # ms, MFLOPs, KB, precision -> utilisation, bound
    ("at the flat part of the roof", layer(1.0, 100, 1000), 1.0, COMPUTE),
    ("half as high as the flat part", layer(2.0, 100, 1000), 0.5, COMPUTE),
    ("on the slope of the roof", layer(1.0, 10, 10_000), 1.0, MEMORY),
    ("no arithmetic", layer(4.0, 0, 10_000), 0.25, MEMORY),
    ("int8 under the higher roof of int8", layer(1.0, 200, 1000, "int8"), 0.5, COMPUTE),
    ("shorter than a few launches", layer(0.02, 0.1, 1), 0.05, LAUNCH),
    ("longer than many launches, and far below the roof", layer(2.0, 10, 100), 0.05, NEITHER),
    ("close to the cost of a launch", layer(0.018, 1.5, 1), 0.833, LAUNCH),
]


@pytest.mark.parametrize(
    ("row", "share", "bound"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_utilisation_and_bound_of_a_layer(row, share, bound):
    placed = place_layer(row, PEAKS, launch_ms=0.01)
    assert placed.utilisation == pytest.approx(share, abs=1e-3)
    assert placed.bound == bound
    assert placed.flag is None


def test_utilisation_above_the_peak_is_flagged_and_not_clamped():
    placed = place_layer(layer(0.5, 100, 1000), PEAKS, 0.01)
    assert placed.utilisation == pytest.approx(2.0)
    assert placed.flag == "peak under-measured"


def test_roofline_of_the_whole_model():
    rows = [layer(1.0, 100, 1000), layer(3.0, 10, 10_000)]
    rows = [place_layer(row, PEAKS, 0.01) for row in rows]
    placed = place_model(rows, PEAKS, forward_ms=5.0, batch=1)
    assert placed.flops == 110e6 == 2 * placed.macs
    assert placed.utilisation == pytest.approx((1.0 + 1.0) / 5.0)
    assert placed.bound == MEMORY  # 3 of the 4 ms are bound by memory
    assert placed.ridge == {"fp32": 10.0}
    mean = sum(row.utilisation * row.ms for row in rows) / sum(row.ms for row in rows)
    assert max(row.utilisation for row in rows) >= mean >= placed.utilisation


@pytest.mark.parametrize(("used", "device", "count"), [(1.2, "cpu", 1), (0, "cpu", 0), (1, "", 0)])
def test_rates_are_doubtful_if_other_programs_ran_meanwhile(used, device, count):
    facts = from_builtins({**PASSES["layers"], "device": device}, LayersFacts, "")
    layers = PassRecord(available=True, facts=replace(facts, peaks=PEAKS))
    run = document(verdict={**DOCUMENT["verdict"], "others_cores": used})
    plain, sheet = SimpleNamespace(document=run), lambda precision: None
    occasion = SimpleNamespace(plain=plain, records={"layers": layers}, sheet_peaks=sheet)
    occasion.executions = []
    placed = place_on_roofline(occasion)
    assert len(placed.doubts) == count
    assert ("unreliable: other programs" in next(describe_roofline(placed))) == bool(count)
