"""Parameters and multiply-accumulates of the packaged YAML networks equal published figures.

We count from the architecture, without weights. test_yolo_blocks.py shows that graphs have the same
counts. Sources: the tables of YOLOv5's releases (fused parameters in M, GFLOPs at 640) and of the
YOLOv7 paper (arXiv 2207.02696, table 2), where w6, e6 and e6e run at 1280.
"""

from pathlib import Path

import pytest

from detector.core.models.catalogue import folder
from detector.core.models.formats.yolo.blocks import Design, family_of
from detector.core.models.formats.yolo.description import read_description

PUBLISHED = [  # name, side, fused parameters in M, GFLOPs
    ("yolov5n", 640, 1.87, 4.5),
    ("yolov5s", 640, 7.23, 16.5),
    ("yolov5m", 640, 21.17, 49.0),
    ("yolov5l", 640, 46.53, 109.1),
    ("yolov5x", 640, 86.71, 205.7),
    ("yolov5s-5.0", 640, 7.27, 17.0),
    ("yolov5m-5.0", 640, 21.36, 51.3),
    ("yolov5l-5.0", 640, 47.03, 115.4),
    ("yolov5x-5.0", 640, 87.73, 218.8),
    ("yolov5s6", 640, 12.6, 16.8),
    ("yolov5m6", 640, 35.7, 50.0),
    ("yolov5l6", 640, 76.8, 111.4),
    ("yolov5x6", 640, 140.7, 209.8),
    ("yolov7", 640, 36.905341, 104.7),
    ("yolov7x", 640, 71.3, 189.9),
    ("yolov7-tiny", 640, 6.2, 13.8),
    ("yolov7-w6", 1280, 70.4, 360.0),
    ("yolov7-e6", 1280, 97.2, 515.2),
    ("yolov7-e6e", 1280, 151.7, 843.2),
]
EXACT = {  # (parameters as stored, parameters after fusing), as the original projects print
    "yolov5n": (1_872_157, 1_867_405),
    "yolov5s": (7_235_389, 7_225_885),
    "yolov5m": (21_190_557, 21_172_173),
    "yolov5l": (46_563_709, 46_533_693),
    "yolov5x": (86_749_405, 86_705_005),
    "yolov7": (37_622_682, 36_905_341),
    "yolov7-tiny": (6_228_762, 6_219_709),
}


def architecture_of(name: str, side: int):
    description, _ = read_description(folder() / "yolo" / f"{name}.yaml")
    return Design(description).architecture(side, side)


@pytest.mark.parametrize(("name", "side", "parameters_m", "gflops"), PUBLISHED)
def test_counts_equal_the_published_figures(name, side, parameters_m, gflops):
    network = architecture_of(name, side)
    assert network.parameters_fused / 1e6 == pytest.approx(parameters_m, rel=0.01)
    assert 2 * network.macs / 1e9 == pytest.approx(gflops, rel=0.01)
    assert family_of(network) == name[:6]


@pytest.mark.parametrize("name", EXACT)
def test_original_projects_count_the_same_numbers_of_parameters(name):
    network = architecture_of(name, 640)
    assert (network.parameters, network.parameters_fused) == EXACT[name]


@pytest.mark.slow
def test_packaged_descriptions_have_stride_32_or_64():
    paths = sorted((folder() / "yolo").glob("*.yaml"))
    strides = {path.stem: Design(read_description(path)[0]).stride for path in paths}
    large = {name for name, stride in strides.items() if stride == 64}
    assert large == {f"yolov5{size}6" for size in "nsmlx"} | {
        f"yolov7-{size}" for size in ("w6", "e6", "d6", "e6e")
    }
    assert set(strides.values()) == {32, 64}
    assert {name for name, *_ in PUBLISHED} <= strides.keys()


@pytest.mark.slow
def test_table_in_the_docs_has_the_counted_figures():
    text = (Path(__file__).parents[2] / "docs/models.md").read_text(encoding="utf-8")
    for name, side, parameters_m, gflops in PUBLISHED:
        network = architecture_of(name, side)
        row = (
            f"| {name} | {side}x{side} | {network.parameters:,} | {network.parameters_fused:,} | "
            f"{network.macs / 1e9:.2f} | {2 * network.macs / 1e9:.2f} | {parameters_m:g} M | "
            f"{gflops:g} |"
        )
        assert row in text
