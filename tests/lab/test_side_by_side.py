"""Comparing several models: their rows, the reference for each row's agreement, table formats."""

import csv
import io
import itertools
import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from detector.core.config.levels import resolve_config
from detector.core.errors import UsageError
from detector.core.session.measured import Interval
from detector.core.timeline.spans import INFER
from detector.core.timeline.timeline import Timeline
from detector.lab.analysis.compare import Variant, compare_variants, place_on_roof
from detector.lab.compare import parse_models
from detector.lab.compare.rounds import FP32_OF_EACH, Rounds, _describe_shared
from detector.lab.compare.worker import round_of
from detector.lab.report.side_by_side import WRITERS, check_tables, side_by_side, write_tables
from detector.lab.session.comparison import (
    About,
    CountedLayer,
    ModelCounts,
    Round,
    RowRoof,
    VariantFacts,
)
from detector.lab.session.network import Peaks
from tests.checkpoints import random_checkpoint
from tests.cli.command import run_ok, summary_of
from tests.conftest import CHECKOUT
from tests.lab.profile.budgets import with_short_budgets

STREET = CHECKOUT / "videos/street.mp4"
PEAKS = Peaks(gflops_s={"fp32": 100.0}, bandwidth_gbytes_s=10.0)


@pytest.mark.parametrize(
    ("text", "models"),
    [
        (None, []),
        ("street", []),
        ("street,yolov5n", ["street", "yolov5n"]),
        ("a.pt, b.pt,", ["a.pt", "b.pt"]),
        ("a.pt,", []),
        ("a,b.onnx", []),  # the name of one file
    ],
)
def test_models_are_split_at_commas(text, models, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a,b.onnx").touch()
    assert parse_models(text) == models


def test_model_named_twice_is_refused():
    with pytest.raises(UsageError, match="street is listed twice"):
        parse_models("street,yolov5n,street")


def test_models_are_combined_with_engines_and_precisions():
    plan = Rounds(
        "in.mp4", None, ["ort", "torch"], ["fp32", "int8"], [1], 3, models=["x/a.pt", "b"]
    )
    names = [one.name for one in plan.variants()]
    assert names[:3] == ["a ort fp32", "a ort int8", "a torch fp32"]
    assert len(names) == len(set(names)) == 8
    assert [one.model for one in plan.variants()][::4] == ["x/a.pt", "b"]


def test_usual_settings_of_a_run_have_exactly_one_row():
    plan = Rounds("in.mp4", resolve_config(None, {}), ["ort", "openvino"], ["fp32"], [2], 3)
    names = ["ort fp32 batch 2", "openvino fp32 batch 2"]
    for usual, more in ((("ort", "fp32"), []), (("ort", "int8"), ["ort int8 batch 2"])):
        taken = replace(plan, usual=usual)
        assert [one.name for one in taken.variants()] == [*names, *more]
        assert _describe_shared(taken, [], None).usual == [*names[:1], *more][-1]


@pytest.mark.parametrize(
    ("macs", "moved", "frames_s", "roof"),
    [
        # a frame takes 20 ms; its 1 GFLOP takes 10 ms at 100 GFLOP/s
        (500_000_000, 1000, 50.0, RowRoof(share=0.5, bound="compute")),
        (1000, 100_000_000, 50.0, RowRoof(share=0.5, bound="memory")),
        (500_000_000, 1000, 5.0, RowRoof(share=0.05, bound="neither")),
    ],
)
def test_row_has_its_share_of_the_roofline(macs, moved, frames_s, roof):
    roof_found = place_on_roof([CountedLayer("fp32", macs, moved)], 1, frames_s, PEAKS)
    assert roof_found is not None
    assert (roof_found.share, roof_found.bound) == (pytest.approx(roof.share, rel=1e-3), roof.bound)


def test_row_has_no_roofline_if_its_precision_has_no_peak():
    assert place_on_roof([CountedLayer("fp8", 10, 10)], 1, 50.0, PEAKS) is None
    assert place_on_roof([], 1, 50.0, PEAKS) is None


def variant(model, rate, parameters, **more):
    counts = ModelCounts(model, None, (320, 640), parameters, 4 * parameters, 250_000_000)
    facts = VariantFacts(model=model, counts=counts, device="cpu")
    rates = [{"inference": rate + at, "end_to_end": rate / 2} for at in range(3)]
    rounds = [Round(fps, {}, 8, 0.0, ((1e3 / rate, 5), (2e3 / rate, 1))) for fps in rates]
    return Variant("ort", "fp32", 1, f"{model} ort fp32", facts=facts, rounds=rounds, model=model)


def document():
    about = About(
        source="in.mp4", rounds=3, budget=0.99, models=("a", "b_x"), reference=FP32_OF_EACH
    )
    return compare_variants(
        [variant("a", 50.0, 7_230_000), variant("b_x", 20.0, 20_000_000)], about
    )


def test_csv_has_sizes_counts_and_rates():
    (first, _) = csv.DictReader(io.StringIO(text_of(".csv")))
    assert float(first["size_mb"]) == pytest.approx(28.92)  # MB, not MiB
    assert float(first["size_mib"]) == pytest.approx(27.58, abs=0.01)
    assert float(first["gflops"]) == 2 * float(first["gmacs"]) == 0.5
    assert (first["input"], first["model"]) == ("640x320", "a")
    assert [first[f"inference_fps{which}"] for which in ("", "_low", "_high")] == ["51", "50", "52"]
    assert first["latency_p50_ms"] == "20"
    # Empty columns are omitted.
    assert not {"agreement", "ap50", "share_of_roof", "error"} & first.keys()


def text_of(suffix):
    return WRITERS[suffix](side_by_side(document()))


def test_table_in_markdown_has_a_heading_and_aligned_rows():
    markdown = text_of(".md")
    heads = markdown.splitlines()[0]
    assert "| size MB | size MiB | GMACs | GFLOPs |" in heads
    assert len(set(heads.split("|")[1:])) == heads.count("|")
    assert "| 51.0 | 50.0 | 52.0 |" in markdown
    assert all(line.count("|") == heads.count("|") for line in markdown.splitlines()[:4])


def test_table_in_latex_escapes_names():
    latex = text_of(".tex")
    assert latex.startswith("% needs \\usepackage{booktabs}\n")
    assert r"b\_x & ort & fp32" in latex
    assert latex.count(r"\\") == 3


@pytest.mark.parametrize("names", [["t.md", "t.xls"], ["t.md", "./t.md"]])
def test_unknown_format_or_duplicate_table_is_refused(names):
    with pytest.raises(UsageError, match=f"--table .*{names[1]}"):
        check_tables(names)


def test_tables_are_written(tmp_path):
    paths = [str(tmp_path / f"t{suffix}") for suffix in (".csv", ".md", ".tex")]
    assert [str(path) for path in write_tables(side_by_side(document()), paths)] == paths
    assert all((tmp_path / path).stat().st_size > 100 for path in paths)
    assert "of 3 rounds" in str(side_by_side(document()).caption)


def test_percentiles_cover_the_calls_of_all_rounds():
    """18 calls are too few for a p90. The p90 of 24 calls is the 22nd shortest."""
    now = [0]
    timeline = Timeline(lambda: now[0], lambda: now[0], nvtx=False, run_queue=lambda: None)
    with timeline.track("main") as track, track.span(INFER, 0):
        now[0] += 20_000_000
    run = SimpleNamespace(timeline=timeline, run_s=1.0, written=1)
    assert round_of(run, 0.0).calls_ms == ((pytest.approx(20.0, rel=0.01), 1),)
    (row, _) = document().rows
    assert (row.latency_calls, row.latency_ms["p90"]) == (18, None)
    assert row.latency_ms["p50"] == Interval.over([20.0])
    assert "latency_p90_ms" not in csv.DictReader(io.StringIO(text_of(".csv"))).fieldnames
    longer = variant("a", 50.0, 7)
    longer.rounds.append(replace(longer.rounds[0], calls_ms=((10.0, 1), (70.0, 5))))
    about = About(source="in.mp4", rounds=4, budget=0.99, reference=FP32_OF_EACH)
    comparison = compare_variants([longer, variant("b", 20.0, 7)], about)
    row = comparison.rows[0]
    assert row.latency_calls == 24
    assert row.latency_ms == {"p50": Interval(20.0, 20.0, 70.0), "p90": Interval(70.0, 70.0, 70.0)}
    (column,) = [one for one in side_by_side(comparison).columns if one.key == "latency_p90_ms"]
    assert [column.of(one) is None for one in comparison.rows] == [False, True]


@pytest.mark.slow
@pytest.mark.timeout(560)
def test_compare_two_models_on_two_engines_with_labels(tmp_path):
    checkpoint = random_checkpoint(tmp_path / "yolov5n.pt")
    labels = json.loads((CHECKOUT / "videos/street.json").read_text())
    labels["images"] = labels["images"][:6]
    first = {image["id"] for image in labels["images"]}
    labels["annotations"] = [one for one in labels["annotations"] if one["image_id"] in first]
    (tmp_path / "street.json").write_text(json.dumps(labels))
    (tmp_path / "street.mp4").symlink_to(STREET)
    done = run_ok(
        "compare",
        STREET,
        *("--model", f"street,{checkpoint}", "--engine", "ort,openvino", "--size", "160x96"),
        *("--frames", 4, "--rounds", 2, "--threads", 1, "--json"),
        *("--dataset", "street.json", "--mapping", "person-vehicle"),
        *("--table", "t.md"),
        cwd=tmp_path,
        env=with_short_budgets(tmp_path),
        timeout=500,
        imports_torch=True,  # peaks are also measured with torch
    )
    roof_found = summary_of(done)
    rows = roof_found["rows"]
    pairs = itertools.product(("street", "yolov5n"), ("ort", "openvino"))
    assert [tuple(row["name"].split()[:2]) for row in rows] == [*pairs]
    assert roof_found["reference"] == FP32_OF_EACH
    # The first row of each model is the reference for the model's second row.
    assert [row["agreement"] is None for row in rows] == [True, False, True, False]
    assert rows[3]["reference"] == "yolov5n ort fp32"
    assert rows[2]["model"]["parameters"] == 1_867_405
    assert all(row["ap"]["ap50"] is not None for row in rows)
    assert rows[0]["ap"]["ap50"] == pytest.approx(rows[1]["ap"]["ap50"], abs=1e-3)
    assert all(row["roof"]["share"] > 0 for row in rows)
    assert (tmp_path / "t.md").read_text().count("\n| ") == 5
    assert json.dumps(roof_found["models"]) == json.dumps(["street", str(checkpoint)])
