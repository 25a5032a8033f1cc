"""PP-YOLOE+ and PicoDet. PaddleDetection runs the networks; its Trainer and paddle2onnx export them.

PP-YOLOE+ is exported in three forms: with NMS, without NMS, and without both NMS and box scaling.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

os.environ["ENABLE_FALL_BACK"] = "False"  # needed by paddle 2.6 to export whole graphs

import numpy as np
import paddle
from ppdet.core.workspace import load_config, merge_config
from ppdet.data.transform.operators import Decode, NormalizeImage, Permute, Resize
from ppdet.engine import Trainer
from result import Row, Variant, arguments, at_size, row, save, threshold_of_all, write_variant

REQUIREMENTS = [  # one call of pip for each, because their pins contradict each other
    "paddlepaddle==2.6.2",
    "paddledet==2.6.0",
    "paddle2onnx==1.2.11",
    "numpy==1.23.5",
    "opencv-python-headless<4.7",
    "scikit-learn<1.4",
    "six",
    "pyclipper",
    "setuptools<70",
]
LICENCE = "Apache-2.0"
SIDE = 416

COMMON = """\
metric: COCO
num_classes: 80
use_gpu: false
use_xpu: false
use_mlu: false
use_npu: false
log_iter: 20
save_dir: output
snapshot_epoch: 1
print_flops: false
print_params: false
norm_type: bn
use_ema: false
find_unused_parameters: true
TestDataset:
  !ImageFolder
    anno_path: null
worker_num: 0
epoch: 1
"""
PPYOLOE = (
    COMMON
    + """\
architecture: PPYOLOE
depth_mult: 0.33
width_mult: 0.25
PPYOLOE: {backbone: CSPResNet, neck: CustomCSPPAN, yolo_head: PPYOLOEHead, post_process: ~}
CSPResNet:
  layers: [3, 6, 6, 3]
  channels: [64, 128, 256, 512, 1024]
  return_idx: [1, 2, 3]
  use_large_stem: true
  use_alpha: true
CustomCSPPAN: {out_channels: [768, 384, 192], stage_num: 1, block_num: 3, act: swish, spp: true}
PPYOLOEHead:
  fpn_strides: [32, 16, 8]
  grid_cell_scale: 5.0
  grid_cell_offset: 0.5
  static_assigner_epoch: 30
  use_varifocal_loss: true
  loss_weight: {class: 1.0, iou: 2.5, dfl: 0.5}
  static_assigner: {name: ATSSAssigner, topk: 9}
  assigner: {name: TaskAlignedAssigner, topk: 13, alpha: 1.0, beta: 6.0}
  nms: {name: MultiClassNMS, nms_top_k: 1000, keep_top_k: 300, score_threshold: 0.01, nms_threshold: 0.7}
TestReader:
  inputs_def: {image_shape: [3, 416, 416]}
  sample_transforms:
    - Decode: {}
    - Resize: {target_size: [416, 416], keep_ratio: false, interp: 2}
    - NormalizeImage: {mean: [0., 0., 0.], std: [1., 1., 1.], norm_type: none}
    - Permute: {}
  batch_size: 1
"""
)
PICODET = (
    COMMON
    + """\
architecture: PicoDet
PicoDet: {backbone: LCNet, neck: LCPAN, head: PicoHeadV2}
LCNet: {scale: 0.75, feature_maps: [3, 4, 5]}
LCPAN: {out_channels: 96, use_depthwise: true, num_features: 4}
PicoHeadV2:
  conv_feat:
    name: PicoFeat
    feat_in: 96
    feat_out: 96
    num_convs: 2
    num_fpn_stride: 4
    norm_type: bn
    share_cls_reg: true
    use_se: true
  fpn_stride: [8, 16, 32, 64]
  feat_in_chan: 96
  prior_prob: 0.01
  reg_max: 7
  cell_offset: 0.5
  grid_cell_scale: 5.0
  static_assigner_epoch: 100
  use_align_head: true
  static_assigner: {name: ATSSAssigner, topk: 4}
  assigner: {name: TaskAlignedAssigner, topk: 13, alpha: 1.0, beta: 6.0}
  loss_class: {name: VarifocalLoss, use_sigmoid: false, iou_weighted: true, loss_weight: 1.0}
  loss_dfl: {name: DistributionFocalLoss, loss_weight: 0.5}
  loss_bbox: {name: GIoULoss, loss_weight: 2.5}
  nms: {name: MultiClassNMS, nms_top_k: 1000, keep_top_k: 100, score_threshold: 0.025, nms_threshold: 0.6}
TestReader:
  inputs_def: {image_shape: [1, 3, 416, 416]}
  sample_transforms:
    - Decode: {}
    - Resize: {interp: 2, target_size: [416, 416], keep_ratio: false}
    - NormalizeImage: {is_scale: true, mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225]}
    - Permute: {}
  batch_size: 1
"""
)
DESCRIPTION = """\
version: 1
family: %s
about: PaddleDetection's %s; licence Apache-2.0; source paddledet and paddle2onnx (PyPI)
input: {%s, fit: stretch}
outputs:
%s
names: coco-80
"""
PIXELS = {
    "ppyoloe": "scale: 1/255",
    "picodet": "mean: [0.485, 0.456, 0.406], deviation: [0.229, 0.224, 0.225]",
}
ROWS = """\
  boxes: {tensor: 0, columns: 2-5}
  scores: {tensor: 0, columns: 1}
  classes: {tensor: 0, column: 0}
  nms: inside"""
OUTPUTS = {
    "ppyoloe-nms": ROWS,
    "ppyoloe-raw": """\
  boxes: {tensor: 0}
  scores: {tensor: 1, axis: first, several: true}
  nms: needed""",
    "ppyoloe-unscaled": """\
  boxes: {tensor: 0, columns: 0-3}
  scores: {tensor: 0, columns: 4-, several: true}
  nms: needed""",
    "picodet-nms": ROWS,
    "picodet-levels": """\
  boxes: {levels: [4, 5, 6, 7]}
  scores: {levels: [0, 1, 2, 3], several: true}
  cells: {kind: distances, strides: [8, 16, 32, 64], bins: 8, centre: 0.5}""",
}
MEANS = {
    "ppyoloe": {"mean": [0.0, 0.0, 0.0], "std": [1.0, 1.0, 1.0], "norm_type": "none"},
    "picodet": {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225], "is_scale": True},
}


def read(picture: Path, kind: str) -> dict[str, Any]:
    sample: dict[str, Any] = {"im_file": str(picture), "im_id": np.array([0])}
    for operator in (
        Decode(),
        Resize([SIDE, SIDE], keep_ratio=False, interp=2),
        NormalizeImage(**MEANS[kind]),
        Permute(),
    ):
        sample = operator(sample)
    return {
        "image": paddle.to_tensor(sample["image"][None].astype("float32")),
        "im_shape": paddle.to_tensor(sample["im_shape"][None].astype("float32")),
        "scale_factor": paddle.to_tensor(sample["scale_factor"][None].astype("float32")),
        "im_id": paddle.to_tensor(sample["im_id"][None]),
    }


def find(network: Any, picture: Path, kind: str) -> list[Row]:
    rows = network(read(picture, kind))["bbox"].numpy()
    return [row(values[2:], values[1], values[0]) for values in rows if values[0] >= 0]


def set_norms(network: Any, run: Any) -> None:
    """Set the statistics of the batch norms by running the network."""
    norms = [
        layer
        for layer in network.sublayers()
        if isinstance(layer, (paddle.nn.BatchNorm2D, paddle.nn.SyncBatchNorm))
    ]
    network.eval()
    for norm in norms:
        norm.train()
        norm._momentum = 0.3
        norm._use_global_stats = None
    with paddle.no_grad():
        for _turn in range(6):
            run()
    for norm in norms:
        norm.eval()


def scale_outputs(layers: list[Any], run: Any, mean: float, deviation: float, rows: slice) -> None:
    """Scale the output channels ``rows`` of each layer so that they have this mean and deviation.

    A layer whose weights are all zero, as in a new PP-YOLOE, first gets random weights.
    """
    for layer in layers:
        if not layer.weight.numpy().any():
            layer.weight.set_value(np.random.normal(0, 1, layer.weight.shape).astype("float32"))
        outputs: list[Any] = []
        hook = layer.register_forward_post_hook(
            lambda _l, _i, o, s=outputs: s.append(o.numpy()[:, rows])
        )
        with paddle.no_grad():
            run()
        hook.remove()
        values = np.concatenate([output.ravel() for output in outputs])
        factor = deviation / max(float(values.std()), 1e-6)
        weight, bias = layer.weight.numpy(), layer.bias.numpy()
        weight[rows] *= factor
        bias[rows] = bias[rows] * factor + mean - values.mean() * factor
        layer.weight.set_value(weight)
        layer.bias.set_value(bias)


def variant(
    out: Path, pictures: list[Path], kind: str, name: str, options: dict[str, bool]
) -> Variant:
    config = out / f"{name}.yml"
    config.write_text(PPYOLOE if kind == "ppyoloe" else PICODET)
    loaded = load_config(str(config))
    post_process = options.get("export_post_process", True)
    merge_config({"export": {"post_process": post_process, "nms": True, "benchmark": False}})
    paddle.seed(7)
    np.random.seed(7)
    trainer = Trainer(loaded, mode="test")
    network = trainer.model
    sized = [at_size(out, picture, SIDE, SIDE) for picture in pictures]
    parts = [read(picture, kind) for picture in sized]
    joined = {key: paddle.concat([part[key] for part in parts]) for key in parts[0]}
    run = partial(network, joined)
    set_norms(network, run)
    if kind == "ppyoloe":
        scale_outputs(network.yolo_head.pred_cls, run, -5.0, 1.0, slice(None))
        scale_outputs(network.yolo_head.pred_reg, run, 0.0, 1.0, slice(None))
    else:
        scale_outputs(network.head.head_cls_list, run, -3.0, 1.5, slice(0, 80))
        scale_outputs(network.head.head_cls_list, run, 0.0, 1.0, slice(80, None))
    network.eval()
    rows = {picture.name: find(network, picture, kind) for picture in sized}
    threshold = threshold_of_all(rows)
    head = network.yolo_head if kind == "ppyoloe" else network.head
    for key, value in options.items():
        setattr(head, key, value)
        if hasattr(network, key):
            setattr(network, key, value)
    trainer.export(str(out / "inference"))
    model = out / "inference" / name
    command = [sys.executable, "-m", "paddle2onnx.command", "--opset_version", "13"]
    command += ["--model_filename", "model.pdmodel", "--params_filename", "model.pdiparams"]
    command += ["--model_dir", str(model), "--save_file", str(out / f"{name}.onnx")]
    subprocess.run(command, check=True)
    text = DESCRIPTION % (kind, name, PIXELS[kind], OUTPUTS[name])
    iou = (0.7 if kind == "ppyoloe" else 0.6) if options else None
    return write_variant(name, out / f"{name}.onnx", rows, threshold, text, nms_iou=iou)


VARIANTS = {
    "ppyoloe-nms": ("ppyoloe", {}),
    "ppyoloe-raw": ("ppyoloe", {"exclude_nms": True}),
    "ppyoloe-unscaled": ("ppyoloe", {"exclude_post_process": True}),
    "picodet-nms": ("picodet", {}),
    "picodet-levels": ("picodet", {"export_post_process": False}),
}


def main() -> None:
    out, pictures = arguments()
    variants = []
    for name, (kind, options) in VARIANTS.items():
        variants.append(variant(out, pictures, kind, name, options))
        save(
            out, "paddledet 2.6.0, paddlepaddle 2.6.2, paddle2onnx 1.2.11, random weights", variants
        )


if __name__ == "__main__":
    main()
