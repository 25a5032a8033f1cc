"""Correct tables have no errors or warnings; public tables have findings that can be checked by
hand."""

import pytest

from detector.core.models import catalogue
from detector.lab.audit.case import Case, audit
from detector.lab.audit.published import MODELS, SAME_PARAMS
from detector.lab.audit.read import parse_tables
from tests.conftest import CHECKOUT
from tests.lab.audit.cases import of_files, of_text, rules_of

SLIP = "|engine|latency (ms)|FPS|\n|--|--|--|\n|a|50|20|\n|b|32|41.3|\n|c|16|{}|"


def test_row_that_contradicts_all_others_is_an_error_with_its_line() -> None:
    for fps, severity in (("62.5", "error"), ("99", "warning")):
        found = {one.rule: one for one in of_text(SLIP.format(fps)).findings}["fps-above-latency"]
        assert (found.severity, found.rows[0]) == (severity, "line 4: b")


def test_lower_precision_is_flagged_only_if_it_is_faster() -> None:
    for fps, is_faster in (("20.0", False), ("30.0", True)):
        table = f"engine,precision,FPS\nort,fp32,25.0\nort,int8,{fps}\n"
        assert ("accuracy-not-checked" in rules_of(of_text(table))) == is_faster


# Tables by a careful author: consistent figures, spreads, and one change per row.
CLEAN = {
    "one engine, models of several sizes": """
| model | size (pixels) | mAP 50-95 | latency (ms) | params (M) | FLOPs (G) |
|---|---|---|---|---|---|
| yolov5n | 640 | 28.0 | 6.3 ± 0.1 | 1.9 | 4.5 |
| yolov5s | 640 | 37.4 | 6.4 ± 0.1 | 7.2 | 16.5 |
| yolov5m | 640 | 45.4 | 8.2 ± 0.2 | 21.2 | 49.0 |
| yolov5l | 640 | 49.0 | 10.1 ± 0.2 | 46.5 | 109.1 |
""",
    "engines in both precisions": """
| engine | precision | FPS | agreement |
|---|---|---|---|
| pytorch | fp32 | 40.1 [39.2..40.8] | 1.000 |
| pytorch | fp16 | 71.0 [69.9..71.4] | 0.998 |
| tensorrt | fp32 | 118 [116..119] | 1.000 |
| tensorrt | fp16 | 342 [338..345] | 0.997 |
""",
    "batches with the time of the whole batch": """
model,batch,latency (ms),FPS,runs
net,1,9.0,111,20
net,8,40.0,200,20
net,32,128.0,250,20
""",
    "stages of one run": """
| stage | count | total (s) | mean (ms) | min (ms) | max (ms) | share (%) |
|---|---|---|---|---|---|---|
| read | 400 | 0.800 | 2.00 | 1.60 | 4.10 | 10.0 |
| infer | 400 | 6.400 | 16.00 | 14.20 | 22.90 | 80.0 |
| write | 400 | 0.800 | 2.00 | 1.10 | 9.70 | 10.0 |
""",
    "percentiles of enough samples": """
engine,iterations,p50 (ms),p95 (ms),p99 (ms),FPS
ort,1000,14.1,15.9,18.2,70.2
openvino,1000,11.8,12.3,14.0,84.1
""",
    "a speed-up that is the ratio of its rows": """
| Framework | Precision | Execution time (ms) | FPS | Speed-up |
|---|---|---|---|---|
| PyTorch | fp32 | 26.1 ± 0.2 | 38.3 | 1.00 |
| TensorRT | fp32 | 8.5 ± 0.1 | 117.6 | 3.07 |
""",
    "shares of a run's stages, by model": """
model,loading (%),preprocessing (%),inference (%),postprocessing (%)
small,4.69,4.48,87.59,3.24
large,0.37,0.34,99.02,0.27
""",
    "functions of a profile, and their callers": """
name,self CPU %,self CPU (ms),CPU total %,CPU total (ms),calls
forward,0.04,1.1,99.9,2963,1
profiler_enter,0.01,0.3,0.01,0.3,1
mkldnn_convolution,64.07,1900,65.52,1943,6000
cat,8.05,238.7,8.71,258.2,1794
silu_,7.27,215.7,7.27,215.7,5700
""",
    "sizes in MB and in MiB": """
| model | params (M) | size (MB) | size (MiB) | FPS | rounds |
|---|---|---|---|---|---|
| a | 7.23 | 28.9 | 27.6 | 15.2 | 5 |
| b | 86.71 | 346.8 | 330.8 | 2.42 | 5 |
""",
    "energy compared with an idle machine": """
tag;duration (s);package (J)
idle;5,0;30,1
run;5,21;79,85
""",
    "inference and end to end": """
model,video,inference FPS,end-to-end FPS,frames
street,a.mp4,36.1,18.9,400
street,b.mp4,35.8,15.0,400
""",
    "a first layer whose figure is too coarse to tell MACs from FLOPs": """
| type | params | MACs (G) |
|---|---|---|
| Conv | 648 | 0.01 |

| what | value |
|---|---|
| input | 100x100 |
| cores | 2 |
""",
}

# Public tables, and the findings that follow from their figures.
PUBLIC = {
    "torch2trt on a Jetson AGX Xavier": (
        """
| Framework | Precision | Execution time (sec) | Throughput (FPS) | Speed-up (vs. PyTorch FP32) |
|:--:|:--:|:--:|:--:|:--:|
| PyTorch | `Float32` | 13.06 | 38 | 1.00 |
| PyTorch | `Float16` | 7.16 | 69 | 1.82 |
| TensorRT | `Float32` | 4.24 | 117 | 3.08 |
| TensorRT | `Float16` | 1.46 | 342 | 8.95 |
""",
        {"time-of-many-pictures", "accuracy-not-checked", "no-spread"},
    ),
    "UAV-DETR on an RTX 4090": (
        """
| Batch | Latency (ms) | FPS |
|------:|-------------:|----:|
| 1 | 28.69 | 34.86 |
| 4 | 16.01 | 62.45 |
""",
        {"latency-of-a-batch", "no-spread"},
    ),
    "ViT and CrossViT on an RTX 5070 Ti": (
        """
| Model Architecture | Precision | Parameters | Peak VRAM | $p50$ Latency | $p95$ Latency | \
$p99$ Latency | Throughput (FPS) |
|---|---|---|---|---|---|---|---|
| **Standard ViT** | **FP32** | 11.03M | 78.69 MB | 1.35 ms | 1.39 ms | 1.59 ms | **739.3 FPS** |
| **Standard ViT** | **FP16** | 11.03M | 78.69 MB | 0.86 ms | 0.92 ms | 0.99 ms | **1,157.2 FPS** |
| **CrossViT** | **FP32** | 28.48M | 143.12 MB | 3.29 ms | 3.84 ms | 4.48 ms | **303.9 FPS** |
| **CrossViT** | **FP16** | 28.48M | 143.12 MB | 5.54 ms | 6.00 ms | 6.09 ms | **180.4 FPS** |
""",
        {"unchanged-where-change-was-claimed", "derived-column", "accuracy-not-checked"},
    ),
    "a pipeline on a Jetson AGX Orin": (
        """
| Component | Latency (ms) | FPS |
|-----------|--------------|-----|
| Camera Capture | 40 | 25 |
| Preprocessing | 15 | - |
| YOLOv8m Inference | 280 | 3.6 |
| Tracking (DeepSORT) | 25 | - |
| **Total Pipeline** | **~400** | **2.5** |
""",
        set(),  # no finding: the parts add up to 360, but "~400" is approximate
    ),
    "torch2trt on a data centre GPU, with units": (
        """
| Name | FPS (TensorRT) | Latency (TensorRT, ms) |
|------|------|------|
| alexnet | 2.68e+03 | 0.46 |
| squeezenet1_0 | 3.8e+03 | 0.344 |
| resnet18 | 2.37e+03 | 0.489 |
| resnet50 | 1.19e+03 | 0.873 |
| resnet101 | 620 | 1.35 |
| resnet152 | 426 | 1.93 |
| vgg19 | 773 | 1.3 |
""",
        {"fps-above-latency", "fps-against-latency"},
    ),
}


@pytest.mark.parametrize("name", CLEAN)
def test_correct_table_has_no_errors_or_warnings(name: str) -> None:
    document = of_text(CLEAN[name])
    assert [finding for finding in document.findings if finding.severity != "note"] == []
    assert [finding.unread for finding in document.audited if finding.unread] == []


def test_all_correct_tables_together_have_no_errors() -> None:
    tables = [table for name, text in CLEAN.items() for table in parse_tables(text, name)]
    assert audit(Case(tables)).counts["error"] == 0


@pytest.mark.parametrize("name", PUBLIC)
def test_public_table_has_the_expected_findings(name: str) -> None:
    text, expected = PUBLIC[name]
    assert rules_of(of_text(text)) == expected


def test_published_parameter_counts_are_the_same_as_in_our_catalogue() -> None:
    for name in MODELS.keys() & {*catalogue.known()}:
        figures = catalogue.known_model(name).figures
        params = figures.get("parameters_fused") or figures["parameters"]
        assert params / 1e6 == pytest.approx(MODELS[name].params_m, rel=SAME_PARAMS), name


@pytest.mark.parametrize(("row", "flagged"), [("40,45,36", False), ("40,36,45", True)])
def test_best_rate_is_the_highest(row: str, flagged: bool) -> None:
    document = of_text(f"model,mean FPS,best FPS,worst FPS\na,{row}\n")
    assert ("statistic-outside-range" in rules_of(document)) == flagged


@pytest.mark.parametrize(
    ("printed", "flagged"),
    [("0.0664", False), ("0.1327", True), ("0.2654", False), ("0.5308", True)],
)
def test_first_layer_reveals_flops_labelled_as_macs(printed: str, flagged: bool) -> None:
    """Figures of 24 filters of 3x3x3: MACs and FLOPs at stride 2, then both at stride 1."""
    text = CLEAN["a first layer whose figure is too coarse to tell MACs from FLOPs"]
    text = text.replace("0.01", printed).replace("100x100", "640x640")
    assert ("mac-or-flop" in rules_of(of_text(text))) == flagged


@pytest.mark.parametrize(
    ("peak", "more", "flagged"),
    [
        *((150e9, "", True), (200e9, "", False), (300e9, "", True)),
        *((200e9, "c,9.00,180.0,fp32\n", True), (200e9, "c,9.00,180.0,int8\n", False)),
    ],
)
def test_peak_that_rows_imply_is_checked(peak: float, more: str, flagged: bool) -> None:
    text = f"model,utilisation (%),GFLOP/s,precision\na,50.00,100.0,fp32\nb,25.00,50.0,fp32\n{more}"
    assert ("peak-differs" in rules_of(of_text(text, {"peak": peak}))) == flagged


@pytest.mark.slow
@pytest.mark.parametrize("page", ["README.md", "docs/performance.md", "docs/live.md"])
def test_our_own_pages_have_no_errors(page: str) -> None:
    document = of_files([CHECKOUT / page])
    assert [one for one in document.findings if one.severity == "error"] == []
