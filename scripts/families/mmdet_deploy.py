"""mmdetection's detectors as mmdeploy exports them: end2end.onnx with outputs dets and labels."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import mmcv_ops
import torch

mmcv_ops.install()
# mmdeploy was written for PyTorch's older exporter, which is no longer the default.
torch.onnx.export = functools.partial(torch.onnx.export, dynamo=False)

import mmdet  # noqa: E402
import mmengine  # noqa: E402
from mmdeploy.apis import torch2onnx  # noqa: E402
from mmdet.apis import inference_detector, init_detector  # noqa: E402
from mmdet.models.dense_heads import SSDHead  # noqa: E402
from mmdet.utils import register_all_modules  # noqa: E402
from result import (  # noqa: E402
    Row,
    Variant,
    arguments,
    at_size,
    rows_of,
    save,
    set_norms,
    threshold_of_all,
    write_variant,
)
from weights import scale_outputs  # noqa: E402

REQUIREMENTS = [
    "mmdet==3.3.0 mmdeploy==1.3.1 --no-deps",
    "mmengine==0.10.7 mmcv-lite==2.1.0 torch torchvision onnx pycocotools shapely "
    "terminaltables six tqdm scipy matplotlib aenum grpcio multiprocess dill prettytable "
    "setuptools<81 opencv-python-headless",
]
LICENCE = "Apache-2.0"
SSDHead.loss_cls = None  # mmdet 3.3.0 reads loss_cls from every head; SSDHead has none
CONFIGS = Path(mmdet.__file__).parent / ".mim/configs"
IMAGENET_BGR = "mean: [103.53, 116.28, 123.675], deviation: [57.375, 57.12, 58.395]"
IMAGENET_RGB = "mean: [123.675, 116.28, 103.53], deviation: [58.395, 57.12, 57.375]"
CAFFE = "mean: [103.53, 116.28, 123.675], deviation: [1, 1, 1]"
OUTPUT_LAYERS = {  # the head's attributes with the layers for class scores, and for boxes
    "rtmdet": ("rtm_cls", "rtm_reg"),
    "retinanet": ("retina_cls", "retina_reg"),
    "ssd": ("cls_convs", "reg_convs"),
    "yolox": ("multi_level_conv_cls", "multi_level_conv_reg"),
}
MODELS: dict[str, tuple[str, tuple[int, int], str]] = {
    "rtmdet": (
        "rtmdet/rtmdet_tiny_8xb32-300e_coco.py",
        (320, 320),
        f"colour: bgr, scale: 1, {IMAGENET_BGR}, fit: letterbox, align: top-left, pad: 114",
    ),
    "retinanet": (
        "retinanet/retinanet_r18_fpn_1x_coco.py",
        (320, 256),
        f"colour: rgb, scale: 1, {IMAGENET_RGB}, fit: letterbox, align: top-left, pad: [124, 116, 104]",
    ),
    "retinanet-caffe": (
        "retinanet/retinanet_r50-caffe_fpn_1x_coco.py",
        (320, 256),
        f"colour: bgr, scale: 1, {CAFFE}, fit: letterbox, align: top-left, pad: [124, 116, 104]",
    ),
    "ssd": (
        "ssd/ssd300_coco.py",
        (300, 300),
        "colour: rgb, scale: 1, mean: [123.675, 116.28, 103.53], deviation: [1, 1, 1], fit: stretch",
    ),
    "yolox": (
        "yolox/yolox_tiny_8xb8-300e_coco.py",
        (320, 320),
        "colour: bgr, scale: 1, fit: letterbox, align: top-left, pad: 114",
    ),
}


def set_sizes(config: Any, size: tuple[int, int]) -> None:
    """Set the sizes of Resize and Pad in the test pipeline."""
    for pipeline in (config.test_pipeline, config.test_dataloader.dataset.pipeline):
        for step in pipeline:
            if step.type in ("Resize", "Pad") and not step.get("pad_to_square"):
                step["scale" if step.type == "Resize" else "size"] = size


def find(network: Any, picture: Path) -> list[Row]:
    instances = inference_detector(network, str(picture)).pred_instances
    return rows_of(instances.bboxes, instances.scores, instances.labels)


def last_layers(module: Any) -> list[Any]:
    """Return the last convolution of each level of a head; ``module`` may be a single layer."""
    if isinstance(module, torch.nn.Conv2d):
        return [module]
    if isinstance(module, torch.nn.ModuleList):
        return [layer for child in module for layer in last_layers(child)]
    return [[part for part in module.modules() if isinstance(part, torch.nn.Conv2d)][-1]]


def deploy_config(size: tuple[int, int]) -> Any:
    """Return mmdeploy's config detection_onnxruntime_static. mmdeploy on PyPI has no configs."""
    return mmengine.Config(
        {
            "onnx_config": {
                "type": "onnx",
                "export_params": True,
                "keep_initializers_as_inputs": False,
                "opset_version": 11,
                "save_file": "end2end.onnx",
                "input_names": ["input"],
                "output_names": ["dets", "labels"],
                "input_shape": list(size),
                "optimize": False,
            },
            "codebase_config": {
                "type": "mmdet",
                "task": "ObjectDetection",
                "model_type": "end2end",
                "post_processing": {
                    "score_threshold": 0.05,
                    "confidence_threshold": 0.005,
                    "iou_threshold": 0.5,
                    "max_output_boxes_per_class": 200,
                    "pre_top_k": 5000,
                    "keep_top_k": 100,
                    "background_label_id": -1,
                },
            },
            "backend_config": {"type": "onnxruntime"},
        }
    )


def variant(out: Path, pictures: list[Path], name: str) -> Variant:
    file, size, preprocessing = MODELS[name]
    config = mmengine.Config.fromfile(CONFIGS / file)
    set_sizes(config, size)
    config.model.backbone.init_cfg = None
    torch.manual_seed(7)
    network = init_detector(config, None, device="cpu")
    sized = [at_size(out, picture, *size) for picture in pictures]

    def run() -> Any:
        for picture in sized:
            inference_detector(network, str(picture))

    network.eval()
    # Random weights give nearly equal scores. Scale the weights, so that there are detections.
    set_norms(network, run)
    classes, boxes = (
        getattr(network.bbox_head, part) for part in OUTPUT_LAYERS[name.removesuffix("-caffe")]
    )
    softmax = name == "ssd"
    scale_outputs(
        last_layers(classes), run, mean=0.0 if softmax else -5.0, deviation=1.5 if softmax else 1.0
    )
    scale_outputs(last_layers(boxes), run, mean=1.0 if name == "rtmdet" else 0.0, deviation=0.3)
    rows = {picture.name: find(network, picture) for picture in sized}
    threshold = threshold_of_all(rows)
    weights = out / f"{name}.pth"
    torch.save({"state_dict": network.state_dict()}, weights)
    torch2onnx(
        str(sized[0]),
        str(out),
        f"mmdet-{name}.onnx",
        deploy_config(size),
        config,
        str(weights),
        "cpu",
    )
    weights.unlink()
    path = out / f"mmdet-{name}.onnx"
    return write_variant(name, path, rows, threshold, DESCRIPTION % (name, preprocessing))


def main() -> None:
    out, pictures = arguments()
    register_all_modules()
    variants = []
    for name in MODELS:
        variants.append(variant(out, pictures, name))
        # Save after each model, so that a crash does not lose the earlier results.
        save(out, "mmdet 3.3.0, mmdeploy 1.3.1, random weights; NMS by torchvision", variants)


DESCRIPTION = """\
version: 1
family: mmdet
about: mmdetection's %s, exported by mmdeploy; licence Apache-2.0; source mmdet and mmdeploy (PyPI)
input: {%s}
outputs:
  boxes: {tensor: dets, columns: 0-3, form: xyxy, unit: pixels}
  scores: {tensor: dets, columns: 4}
  classes: {tensor: labels, first: 0}
  nms: inside
names: coco-80
"""

if __name__ == "__main__":
    main()
