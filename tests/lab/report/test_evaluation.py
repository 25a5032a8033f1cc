"""The tables and drawings of ``eval``."""

import io
import xml.etree.ElementTree as ElementTree

from rich.console import Console

from detector.core.session.document import Exit, FrameCounts, Rates
from detector.lab.report.plots import plots
from detector.lab.session import evaluation
from detector.lab.terminal.evaluate import print_evaluation

SVG = "{http://www.w3.org/2000/svg}"


def means(ap50):
    return {
        "ap": ap50 and ap50 / 2,
        "ap50": ap50,
        "ap75": ap50,
        "ap_small": None,
        "ap_medium": ap50,
        "ap_large": None,
        "ap50_interval": (None, None) if ap50 is None else (0.25, 0.75),
    }


def of_class(ap50):
    rates = {"recall": ap50, "recall_conf25": ap50, "precision_conf25": None}
    counts = {"pictures": 5, "boxes": 0 if ap50 is None else 9, "ignored_boxes": 0}
    return evaluation.ClassAccuracy(**counts, **rates, **means(ap50))


def scores(classes):
    side = len(classes) + 1
    return {
        **means(0.5),
        "per_class": {name: of_class(ap50) for name, ap50 in classes.items()},
        "curves": {name: (None if ap50 is None else 1.0,) * 101 for name, ap50 in classes.items()},
        "confusion": evaluation.ConfusionMatrix(
            conf=0.25, iou=0.5, names=(*classes, "background"), counts=((0,) * side,) * side
        ),
        "notes": ("said once",),
        "session": "runs/x",
    }


def figures(classes, **more):
    run = {"engine": "ort", "model": "x<y", "precision": "fp32", "batch": 2, "tiles": "none"}
    run |= {"model_input": (256, 416), "frames": FRAMES}
    run |= {"fps": Rates(inference=20.0, end_to_end=10.0)}
    return evaluation.EngineResult(**{**run, **scores(classes), **more})


FRAMES = FrameCounts(read=5, written=5, bad=0, corrupt=0, skipped=0, dropped=0)
DATA = evaluation.EvaluatedData(
    path="val.json",
    format="coco",
    subset="road",
    video=None,
    pictures=5,
    boxes=20,
    classes=("person", "vehicle"),
)


def printed(*results):
    document = evaluation.Evaluation(
        schema=1,
        dataset=DATA,
        settings=evaluation.Thresholds(0.001, 0.65, False, 300, 100),
        mapping="m.yaml",
        results=results,
        notes=(),
        exit=Exit(code=0, reason="done"),
    )
    text = io.StringIO()
    print_evaluation(Console(file=text, width=140), document)
    return text.getvalue()


def test_table_of_one_engine_shows_figures_and_settings():
    text = printed(figures({"person": 0.5, "vehicle": None}))
    assert "5 pictures, 9 boxes; 11 more are not scored" in " ".join(text.split())
    assert "model: x<y, input 416x256, batch 2" in text
    assert "0.500 [0.25, 0.75]" in text
    assert text.count("said once") == 1
    plain = " ".join(text.split())
    for setting in ("0.001", "IoU 0.65 within a class", "300 detections", "best 100"):
        assert setting in plain, setting


def test_row_of_a_second_engine_shows_its_difference():
    change = evaluation.AveragePrecision(None, -0.0123, None, None, None, None)
    slower = Rates(inference=5.0, end_to_end=5.0)
    second = figures({"person": 0.5}, engine="torch", difference=change, fps=slower)
    text = printed(figures({"person": 0.5}), second)
    line = next(line for line in text.splitlines() if "change" in line)
    assert line.split() == ["change", "-", "-0.0123", "-", "-", "-", "-", "x", "0.25", "x", "0.50"]
    assert "by class, torch" in text


def test_best_and_worst_of_many_classes_are_listed():
    text = printed(figures({f"class{n}": n / 100 for n in range(80)} | {"unlabelled": None}))
    assert "worst of 80" in text
    assert "unlabelled" not in text
    assert "class79" in text
    assert "class0 " in text
    assert "class40" not in text


def test_drawings_are_valid_xml_whatever_the_class_names():
    drawn = plots(figures({'a<b & "c"': 0.5, "nothing labelled": None}))
    curves = ElementTree.fromstring(drawn["precision-recall.svg"])
    assert len(curves.findall(f"{SVG}polyline")) == 1  # a class without boxes has no curve
    assert [text.text for text in curves.findall(f"{SVG}text")][-1] == 'a<b & "c" 0.500'
    matrix = ElementTree.fromstring(drawn["confusion.svg"])
    assert len(matrix.findall(f"{SVG}rect")) == 1 + 3 * 3


def test_drawings_of_many_classes_omit_names_and_numbers():
    drawn = plots(figures({f"class{n}": n / 100 for n in range(80)}))
    curves = ElementTree.fromstring(drawn["precision-recall.svg"])
    texts = [str(text.text) for text in curves.findall(f"{SVG}text")]
    assert sum(text.startswith("class") for text in texts) == 12
    assert texts[-1] == "and 68 more"
    matrix = ElementTree.fromstring(drawn["confusion.svg"])
    shades = 3  # texts that explain the shades
    assert len(matrix.findall(f"{SVG}text")) == 2 + 2 * 81 + shades


def test_table_for_a_file_of_detections_has_no_speed():
    row = evaluation.FileResult(detections="out.json", **scores({"person": 0.5}))
    assert " out.json " in printed(row)
    assert "out.json: precision" in plots(row)["precision-recall.svg"]
