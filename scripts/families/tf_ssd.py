"""SSD in the form of TensorFlow's Object Detection API: a small TensorFlow graph, exported by tf2onnx.

Boxes and NMS use TensorFlow's operators, and the four outputs have the API's names. One file takes
320x320; the other takes any size and resizes the picture in the graph, like the zoo's files.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"

import itertools

import cv2
import numpy as np
import tensorflow as tf
import tf2onnx
from result import Row, Variant, arguments, at_size, row, save, threshold_of_all, write_variant

REQUIREMENTS = [
    "tensorflow-cpu==2.15.1 tf2onnx==1.16.1 onnx==1.16.2 numpy<2 protobuf<5 "
    "opencv-python-headless<5"
]
LICENCE = "Apache-2.0"
SIDE, CLASSES, STRIDES = 320, 90, (16, 32)


class Ssd(tf.Module):
    """Five convolutions, two feature maps, three boxes per cell, encoded by the API's faster_rcnn coder."""

    def __init__(self) -> None:
        super().__init__()
        random = np.random.default_rng(7)

        def weight(*shape: int, gain: float = 1.4) -> tf.Variable:
            return tf.Variable(
                random.normal(0, gain / np.sqrt(np.prod(shape[:-1])), shape).astype(np.float32)
            )

        widths = (3, 16, 24, 32, 48, 64)
        self.body = [weight(3, 3, a, b) for a, b in itertools.pairwise(widths)]
        self.classes = [weight(3, 3, w, 3 * (CLASSES + 1), gain=6) for w in widths[-2:]]
        self.boxes = [weight(3, 3, w, 12, gain=1.5) for w in widths[-2:]]
        self.anchors = anchors()
        self.factor, self.shift = 1.0, 0.0

    def scale_outputs(self, pictures: list[Path]) -> None:
        """Scale the logits to mean -4 and standard deviation 1."""
        values = []
        for picture in pictures:
            logits, _boxes = self.raw(tf.constant(cv2.imread(str(picture))[None]))
            values.append(logits.numpy().ravel())
        joined = np.concatenate(values)
        self.factor = float(1 / joined.std())
        self.shift = float(-4 - joined.mean() * self.factor)

    def __call__(self, image: tf.Tensor) -> dict[str, tf.Tensor]:
        logits, boxes = self.raw(image)
        return self.finish(tf.sigmoid(logits)[..., 1:], boxes)

    def raw(self, image: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        x = tf.cast(image, tf.float32)
        x = tf.image.resize(x, (SIDE, SIDE)) if image.shape[1] is None else x
        x = x * (2.0 / 255.0) - 1.0
        scores, boxes = [], []
        for level, kernel in enumerate(self.body):
            x = tf.nn.relu6(tf.nn.conv2d(x, kernel, 2, "SAME"))
            if level >= 3:
                logits = tf.nn.conv2d(x, self.classes[level - 3], 1, "SAME")
                scores.append(tf.reshape(logits, (1, -1, CLASSES + 1)))
                boxes.append(
                    tf.reshape(tf.nn.conv2d(x, self.boxes[level - 3], 1, "SAME"), (1, -1, 4))
                )
        return tf.concat(scores, 1) * self.factor + self.shift, tf.concat(boxes, 1)[0]

    def finish(self, scores: tf.Tensor, codes: tf.Tensor) -> dict[str, tf.Tensor]:
        centre_y, centre_x, height, width = (self.anchors[:, k] for k in range(4))
        y = codes[:, 0] / 10 * height + centre_y
        x = codes[:, 1] / 10 * width + centre_x
        h, w = tf.exp(codes[:, 2] / 5) * height, tf.exp(codes[:, 3] / 5) * width
        boxes = tf.stack([y - h / 2, x - w / 2, y + h / 2, x + w / 2], 1)
        selected = tf.image.combined_non_max_suppression(
            boxes[None, :, None], scores, 100, 100, iou_threshold=0.6, score_threshold=1e-8
        )
        return {
            "detection_boxes": selected[0],
            "detection_classes": selected[2] + 1,
            "detection_scores": selected[1],
            "num_detections": tf.cast(selected[3], tf.float32),
        }


def anchors() -> Any:
    """Return the anchors [N, 4]: centre y, centre x, height, width in 0..1."""
    rows = []
    for stride in STRIDES:
        cells = SIDE // stride
        y, x = np.meshgrid(*[(np.arange(cells) + 0.5) / cells] * 2, indexing="ij")
        for tall, wide in ((1, 1), (1.4, 0.7), (0.7, 1.4)):
            size = 4 * stride / SIDE
            rows.append(np.stack([y, x, y * 0 + size * tall, x * 0 + size * wide], -1))
        rows[-3:] = [np.stack(rows[-3:], 2).reshape(-1, 4)]
    return np.concatenate(rows).astype(np.float32)


def detect(function: Any, picture: Path) -> list[Row]:
    image = cv2.cvtColor(cv2.imread(str(picture)), cv2.COLOR_BGR2RGB)
    outputs = {key: value.numpy()[0] for key, value in function(tf.constant(image[None])).items()}
    height, width = image.shape[:2]
    rows = []
    for index in range(int(outputs["num_detections"])):
        y1, x1, y2, x2 = outputs["detection_boxes"][index]
        box = (x1 * width, y1 * height, x2 * width, y2 * height)
        rows.append(
            row(box, outputs["detection_scores"][index], outputs["detection_classes"][index] - 1)
        )
    return rows


def variant(out: Path, pictures: list[Path], name: str, side: int | None) -> Variant:
    network = Ssd()
    sized = [at_size(out, picture, SIDE, SIDE) for picture in pictures]
    network.scale_outputs(sized)
    spec = tf.TensorSpec((1, side, side, 3), tf.uint8, name="input_tensor")
    function = tf.function(network.__call__, input_signature=[spec])
    rows = {picture.name: detect(function, picture) for picture in sized}
    threshold = threshold_of_all(rows)
    tf2onnx.convert.from_function(
        function, input_signature=[spec], opset=13, output_path=str(out / f"tf-{name}.onnx")
    )
    size = None if side else (SIDE, SIDE)
    return write_variant(name, out / f"tf-{name}.onnx", rows, threshold, DESCRIPTION, size=size)


def main() -> None:
    out, pictures = arguments()
    variants = [variant(out, pictures, "320", SIDE), variant(out, pictures, "any-size", None)]
    save(out, "TensorFlow 2.15.1 and tf2onnx 1.16.1, random weights", variants)


DESCRIPTION = """\
version: 1
family: tf-object-detection
about: SSD of TensorFlow's Object Detection API; licence Apache-2.0; source TensorFlow's model zoo, by tf2onnx
input: {colour: rgb, scale: 1, fit: stretch}
outputs:
  boxes: {tensor: detection_boxes, form: yxyx, unit: fraction}
  scores: {tensor: detection_scores, values: probabilities}
  classes: {tensor: detection_classes, first: 1}
  count: {tensor: num_detections}
  nms: inside
names: coco-90
"""

if __name__ == "__main__":
    main()
