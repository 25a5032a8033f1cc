"""The tables of a comparison in the terminal."""

import io
from dataclasses import replace

from rich.console import Console

import detector.lab.compare
from detector.core.analysis.agreement import Agreement
from detector.core.config.schema import Config
from detector.core.run.choose import EngineChoice
from detector.lab.analysis.compare import Variant, compare_variants
from detector.lab.compare import compare_command
from detector.lab.session.comparison import (
    About,
    ComparedLabels,
    ComparedVideo,
    Round,
    VariantFacts,
)
from detector.lab.session.evaluation import ClassAccuracy, MeanAccuracy
from detector.lab.terminal.compare import print_comparison
from tests.conftest import CHECKOUT

SHARES = {
    "int8": {"layers": 0.9, "macs": 0.96, "bytes": 0.8},
    "fp32": {"layers": 0.1, "macs": 0.04, "bytes": 0.2},
}
FACTS = VariantFacts(
    load_s=1.25, build_s=12.5, threads=2, concurrency=1, device="cpu", notes=("calibrated",)
)
ABOUT = About(
    source="in.mp4",
    model="yolov4-tiny-person-vehicle",
    model_input=(416, 416),
    rounds=6,
    frames=60,
    reference="torch fp32",
    budget=0.95,
)
VIDEO = ComparedVideo("in.mp4", 1280, 720, 25.0)


def variant(engine, precision, *fps, share=0.99, **facts):
    cpu = {"read": 1.0, "annotate": 1.0, "write": 1.0}
    rounds = [Round({"inference": rate, "end_to_end": rate / 2}, cpu, 60) for rate in fps]
    more = {"rounds": rounds, "frames_digest": "d", "memory_mb": 251.4}
    row = Variant(engine, precision, 1, f"{engine} {precision}", **more)
    row.facts = replace(FACTS, **facts)
    row.agreement = Agreement(60, 100, 100, 99, share, 0.875, 0.0125)
    return row


def printed(*variants, **about):
    document = compare_variants(variants, replace(ABOUT, **about))
    return printed_document(replace(document, video=VIDEO))


def printed_document(document, width=100):
    out = io.StringIO()
    print_comparison(Console(file=out, width=width), document)
    return out.getvalue()


def test_table_with_all_figures_fits_100_columns():
    text = printed(
        variant("torch", "fp32", *(110.5, 120.5, 130.5) * 2),
        variant("openvino", "int8", *(1110.5, 1120.5, 1130.5) * 2, precision_executed=SHARES),
        Variant("trt", "int8", 1, "trt int8", error="no GPU here"),
    )
    for fact in (
        *("120.5 [110.5..130.5]", "60.2 [55.2..65.2]", "9.30x", "0.990", "0.875", "0.0125", "251"),
        *("1.25", "12.50", "416x416", "1280x720", "6 rounds of 60 frames", "int8 96% of"),
        *("trt int8: no GPU here", "with torch fp32", "median of the rounds [lowest"),
        "openvino int8 is fastest, 9.30x [8.66 .. 10.05] of torch fp32",
    ):
        assert fact in text, fact
    assert max(map(len, text.splitlines())) <= 100


def test_noise_and_low_agreement_are_mentioned_below_the_table():
    text = printed(variant("a", "fp32", 10, 11, 12), variant("b", "fp32", 11, 12, 10))
    assert "cannot separate these rows; use --rounds 6" in text
    assert "beyond the noise" not in text, "equal rows are listed as the fastest"
    busy = replace(variant("b", "fp32", 11, 12, 10), frames_digest="other")
    lines = [line for line in printed(variant("a", "fp32", 10, 11, 12), busy).splitlines() if line]
    assert [line.split(":")[0] for line in lines[-2:]] == ["3 rounds", "no winner"]
    alike = [variant(name, "fp32", 10, 10, 10) for name in "ab"]
    assert "\nnoise 1.0% (assumed, not measured); 3 rounds" in printed(*alike)
    six = (10, 11, 12, 10, 11, 12)
    equal = printed(variant("a", "fp32", *six), variant("b", "fp32", *six[::-1]))
    assert "beyond the noise: a fp32, b fp32" in equal
    doubled = [2 * rate for rate in six]
    text = printed(variant("a", "fp32", *six), variant("b", "int8", *doubled, share=0.8))
    assert "agreement 0.800 is below the --budget of 0.95" in " ".join(text.split())


def test_users_budget_is_kept_and_the_reason_for_the_automatic_engine_is_printed(monkeypatch):
    def choose(config, picture):
        packaged = replace(config.calibration, budget=0.99)
        return EngineChoice(replace(config, calibration=packaged), "measured 1.6x as fast")

    def compare(plan, watch):
        about = replace(ABOUT, usual="a fp32", why_usual=plan.why_usual)
        about = replace(about, budget=plan.config.calibration.budget)
        return compare_variants([variant("a", "fp32", 10)], about), [variant("a", "fp32", 10)]

    monkeypatch.setattr(detector.lab.compare, "choose_as_a_run", choose)
    monkeypatch.setattr(detector.lab.compare, "compare", compare)
    words = str(CHECKOUT / "videos/street.mp4"), Config(), None, None, "1"
    document, _ = compare_command(*words, rounds=3, watch=print)
    assert document.budget == 0.95
    assert "a plain run uses: a fp32 (measured 1.6x as fast)" in printed_document(document)


def test_table_of_80_columns_breaks_no_word():
    rows = [variant("openvino", "int8", 1000, 1100, 1200), variant("torch", "fp32", 10, 11, 12)]
    document = replace(compare_variants(rows, ABOUT), video=VIDEO)
    lines = printed_document(document, width=80).splitlines()
    assert max(map(len, lines)) <= 80
    for word in ("openvino", "int8", "torch", "fp32", "ratio"):
        assert any(word in line.split() for line in lines)


def test_agreement_with_random_weights_is_in_parentheses():
    text = printed(variant("a", "fp32", 10, 11, 12), random_weights=0)
    assert "(0.990)" in text
    assert "random weights: " in text


def test_comparison_without_successful_run_prints_errors_and_no_winner():
    failed = Variant("trt", "int8", 1, "trt int8", error="no GPU here")
    text = printed(failed, model=None, model_input=None, frames=None)
    assert "no model could" in text
    assert "int8: no GPU here" in text
    assert "fastest" not in text


LABELS = ComparedLabels(
    path="in.json",
    format="coco",
    mapping=None,
    classes=("person", "vehicle"),
    pictures=60,
    boxes=538,
    conf=0.001,
    iou=0.65,
    max_det=300,
    notes=("skipped classes that only the labels have: zebra",),
)
MEANS = dict.fromkeys(("ap75", "ap_small", "ap_medium", "ap_large"))


def of_class(ap50):
    rates = dict.fromkeys(("ap", "recall", "recall_conf25", "precision_conf25"))
    counts = {"pictures": 60, "boxes": 9, "ignored_boxes": 0}
    return ClassAccuracy(ap50=ap50, ap50_interval=(None, None), **counts, **rates, **MEANS)


def variant_with_ap(*fps, interval=(0.955, 0.977)):
    row = variant("openvino", "int8", *fps)
    per_class = {"person": of_class(0.934), "vehicle": of_class(None)}
    per_class |= {name: of_class(0.5) for name in "abcde"}
    row.ap = MeanAccuracy(
        ap=0.534, ap50=0.967, ap50_interval=interval, per_class=per_class, **MEANS
    )
    return row


def test_average_precision_is_printed_within_100_columns():
    text = printed(
        variant_with_ap(10, 11, 12),
        Variant("trt", "int8", 1, "trt int8", error="no GPU here"),
        labels=LABELS,
    )
    plain = " ".join(text.split())
    for fact in (
        *("AP50 person", "0.967", "0.955..0.977", "0.534", "0.934", "scores from 0.001"),
        *("in.json: 60 frames, 538 boxes", "NMS IoU 0.65", "note: skipped classes"),
    ):
        assert fact in plain, fact
    assert max(map(len, text.splitlines())) <= 100
    assert "AP50 person" not in printed(
        variant_with_ap(10, 11, 12), labels=replace(LABELS, classes=tuple("abcde"))
    )


def test_no_accuracy_table_without_scores():
    assert "AP50" not in printed(variant("a", "fp32", 10, 11, 12), labels=None)
    assert "AP50" not in printed(variant("a", "fp32", 10, 11, 12), labels=LABELS)
    assert "-" in printed(variant_with_ap(10, 11, 12, interval=(None, None)), labels=LABELS)
