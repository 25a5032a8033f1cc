"""Run ultralytics as its documentation shows, with the Python of its own environment.

    PYTHON scripts/measuring/ultralytics_job.py check
    PYTHON scripts/measuring/ultralytics_job.py prepare NETWORK FOLDER HEIGHT WIDTH PICTURES
    PYTHON scripts/measuring/ultralytics_job.py predict MODEL CLIP HEIGHT WIDTH PRECISION

Each command prints JSON as its last line. ``PRECISION``: ``default``, or a precision hint of
OpenVINO, such as f32. This module imports no other module of this project.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

os.environ.setdefault("YOLO_AUTOINSTALL", "false")
os.environ.setdefault("YOLO_VERBOSE", "false")

PACKAGES = ("ultralytics", "torch", "torchvision", "openvino", "nncf", "onnx", "opencv-python")
DEFAULT = "default"
CONF, IOU = 0.25, 0.7  # ultralytics' defaults, given explicitly so that both programs use them
WANTED = 30  # boxes per picture after NMS
CELLS = 100  # cells per picture that ``spread_scores`` lifts above the threshold, before any NMS
SEED = 0


def versions() -> dict[str, str]:
    installed = {}
    for name in PACKAGES:
        try:
            installed[name] = version(name)
        except PackageNotFoundError:
            continue
    return installed


def check() -> dict[str, Any]:
    """Check that ultralytics can predict; return versions, and the state of torchvision."""
    import numpy as np
    from ultralytics import YOLO

    picture = np.zeros((64, 64, 3), np.uint8)
    YOLO("yolov8n.yaml").predict(picture, imgsz=64, device="cpu", verbose=False)
    import nncf  # noqa: F401
    import onnx  # noqa: F401
    import openvino  # noqa: F401

    return {"versions": versions(), "torchvision": torchvision_state()}


def torchvision_state() -> str:
    """Describe whether the compiled part of torchvision works with this torch."""
    imported = "torchvision" in sys.modules
    try:
        import torch
        import torchvision

        box, score = torch.tensor([[0.0, 0.0, 1.0, 1.0]]), torch.tensor([1.0])
        torchvision.ops.nms(box, score, 0.5)
    except Exception as error:
        state = f"does not work with this torch ({str(error).splitlines()[0]})"
    else:
        state = "works"
    return f"{state}; prediction {'imported it' if imported else 'ran without it'}"


# ----------------------------------------------------------------------
# A network, and its exports


def prepare(
    network: str, folder: Path, size: tuple[int, int], pictures: Sequence[Path]
) -> dict[str, Any]:
    """Make the network with random weights, as .pt, as ONNX, and for OpenVINO in fp32 and int8.

    Trained weights are not available everywhere. Random weights give the same outputs for every
    picture, and either no box or thousands. So we set the batch norms' statistics from the
    pictures. Then we scale and shift the last layers of the class branches until about 30 boxes per
    picture exceed the threshold. This way, both programs have boxes to suppress, draw and write.
    """
    import torch
    from ultralytics import YOLO

    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(SEED)
    yolo = YOLO(f"{network}.yaml")
    inputs = [read_picture(path, size) for path in pictures]
    adapt_norms(yolo.model, inputs)
    spread_scores(yolo.model, inputs)
    weights = folder / f"{network}.pt"
    yolo.save(str(weights))
    shift_scores(yolo.model, shift_to_wanted(YOLO(weights), size, pictures))
    yolo.save(str(weights))
    data = write_data(folder, pictures)
    common = {"imgsz": list(size), "device": "cpu", "verbose": False}
    exports = {
        "onnx": YOLO(weights).export(format="onnx", **common),
        "openvino": YOLO(weights).export(format="openvino", **common),
        "openvino int8": YOLO(weights).export(
            format="openvino", int8=True, data=str(data), **common
        ),
    }
    return {"torch": str(weights), **exports, "versions": versions()}


def adapt_norms(model: Any, pictures: Sequence[Any]) -> None:
    """Set the mean and variance of the batch norms from these pictures."""
    import torch

    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.reset_running_stats()
            module.momentum = None  # take the mean of all batches
    model.train()
    with torch.no_grad():
        model(torch.cat(list(pictures)))
    model.eval()


def spread_scores(model: Any, pictures: Sequence[Any]) -> None:
    """Scale and shift the class scores so that some cells of each picture exceed the threshold."""
    import torch

    best_logits = []
    with torch.inference_mode():
        for picture in pictures:
            rows = model(picture)
            rows = rows[0] if isinstance(rows, (tuple, list)) else rows
            best_logits.append(torch.logit(rows[0, 4:].amax(0), eps=1e-12))
    logits = torch.stack(best_logits)
    gain = 1.0 / max(float(logits.std()), 1e-6)
    edge = logits.topk(CELLS, dim=1).values[:, -1].median()
    with torch.no_grad():
        for module in score_layers(model):
            module.weight.mul_(gain)
            module.bias.mul_(gain)
    shift_scores(model, logit(CONF) - gain * float(edge))


def shift_to_wanted(yolo: Any, size: tuple[int, int], pictures: Sequence[Path]) -> float:
    """Return the shift of the scores that gives ``WANTED`` boxes per picture after NMS.

    Only boxes of higher score can make NMS drop a box. So one run with a low threshold also gives
    the boxes that every higher threshold would give.
    """
    cutoffs = []
    for path in pictures:
        [result] = yolo.predict(
            str(path), imgsz=list(size), conf=CONF / 4, iou=IOU, max_det=3000, verbose=False
        )
        scores = sorted(result.boxes.conf.tolist(), reverse=True)
        if len(scores) < WANTED:
            raise SystemExit(f"{path.name}: only {len(scores)} boxes with scores above {CONF / 4}")
        cutoffs.append(logit(scores[WANTED - 1]))
    return logit(CONF) - sorted(cutoffs)[len(cutoffs) // 2]


def shift_scores(model: Any, shift: float) -> None:
    import torch

    with torch.no_grad():
        for module in score_layers(model):
            module.bias.add_(shift)


def score_layers(model: Any) -> list[Any]:
    """Return the last layers of the class branches."""
    import torch

    classes = len(model.names)
    last = [
        module
        for module in model.modules()
        if isinstance(module, torch.nn.Conv2d)
        and module.out_channels == classes
        and module.bias is not None
    ]
    if not last:
        raise SystemExit(f"no convolution has {classes} outputs, one per class")
    return last


def logit(share: float) -> float:
    return math.log(share / (1 - share))


def read_picture(path: Path, size: tuple[int, int]) -> Any:
    import cv2
    import torch

    image = cv2.cvtColor(cv2.resize(cv2.imread(str(path)), size[::-1]), cv2.COLOR_BGR2RGB)
    return torch.from_numpy(image).permute(2, 0, 1)[None].float() / 255


def write_data(folder: Path, pictures: Sequence[Path]) -> Path:
    """Write a data set in ultralytics' format to calibrate int8: pictures with one box each."""
    images = pictures[0].parent
    labels = images.parent / "labels"
    labels.mkdir(exist_ok=True)
    for path in pictures:
        (labels / f"{path.stem}.txt").write_text("0 0.5 0.5 0.5 0.5\n")
    description = folder / "data.yaml"
    names = "".join(f"  {number}: class{number}\n" for number in range(80))
    sets = f"train: {images.name}\nval: {images.name}\n"
    description.write_text(f"path: {images.parent}\n{sets}names:\n{names}")
    return description


# ----------------------------------------------------------------------
# ultralytics' prediction


def predict(model: Path, clip: Path, size: tuple[int, int], precision: str) -> dict[str, Any]:
    """Run ``predict(stream=True)`` on a whole clip or on a folder. For a clip, also save the video.

    ``fps`` is measured from the first result to the end, without loading and the first picture.
    """
    from ultralytics import YOLO

    compiled: list[Any] = []
    if model.is_dir():
        watch_openvino(precision, compiled)
    results = YOLO(str(model), task="detect").predict(
        str(clip),
        stream=True,
        save=clip.is_file(),
        imgsz=list(size),
        conf=CONF,
        iou=IOU,
        device="cpu",
        verbose=False,
        project=os.getcwd(),
        name="predicted",
    )
    frames = boxes = 0
    start = cpu = 0.0
    for result in results:
        frames += 1
        boxes += len(result.boxes)
        if frames == 1:
            start, cpu = time.perf_counter(), time.process_time()
    elapsed = time.perf_counter() - start
    written = [path for path in Path("predicted").rglob("*") if path.is_file()]
    return {
        "fps": (frames - 1) / elapsed,
        "cpu_ms": (time.process_time() - cpu) * 1e3 / (frames - 1),
        "frames": frames,
        "boxes": boxes / frames,
        "bytes": sum(path.stat().st_size for path in written),
        "written": [path.name for path in written],
        "ran": described(compiled),
        "torchvision": "torchvision" in sys.modules,
    }


def watch_openvino(precision: str, compiled: list[Any]) -> None:
    """Record in ``compiled`` each model that OpenVINO compiles. Also set the precision, for which
    ultralytics has no option. By default, OpenVINO uses bf16 on CPUs that have it."""
    import openvino

    class Watched(openvino.Core):
        def compile_model(
            self, model: Any, device_name: Any = None, config: Any = None, **options: Any
        ) -> Any:
            settings = dict(config or {})
            if precision != DEFAULT:
                settings["INFERENCE_PRECISION_HINT"] = precision
            model_compiled = super().compile_model(model, device_name, settings, **options)
            compiled.append(model_compiled)
            return model_compiled

    openvino.Core = Watched


def described(compiled: Sequence[Any]) -> str:
    if not compiled:
        return ""
    properties = ("INFERENCE_PRECISION_HINT", "NUM_STREAMS", "INFERENCE_NUM_THREADS")
    values = [compiled[-1].get_property(name) for name in properties]
    precision = values[0].get_type_name() if hasattr(values[0], "get_type_name") else values[0]
    return f"{precision}, {values[1]} streams, {values[2]} threads"


def main(arguments: Sequence[str]) -> None:
    command, *rest = arguments
    if command == "check":
        result = check()
    elif command == "prepare":
        network, folder, height, width, pictures = rest
        paths = sorted(Path(pictures).glob("*.jpg"))
        result = prepare(network, Path(folder), (int(height), int(width)), paths)
    elif command == "predict":
        model, clip, height, width, precision = rest
        result = predict(Path(model), Path(clip), (int(height), int(width)), precision)
    else:
        raise SystemExit(f"no job {command!r}")
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
