#!/usr/bin/env bash
# SAHI: by default two persons who overlap become one box, also where the picture was not cut.
#
# One would guess: get_sliced_prediction() merges the halves of objects that lie on a seam between two slices; a picture
# that fits into one slice gives what get_prediction() gives, which is what the detector said.
#
# True (sahi 0.12.8): the merging (GREEDYNMM, by IOS, from 0.5 on) looks at all pairs of a class, not at the seams. IOS
# is the overlap by the area of the smaller box, so two persons who cover 60% of each other become one box around both
# (their IoU is 0.43, which NMS of a detector keeps), and a small object before a large one of its class disappears in
# it and leaves its score there.
#
# Why it matters: SAHI is used for small and crowded objects, to find more of them. In queues, herds and car parks it
# finds fewer than the detector did, with boxes that are too wide. Use postprocess_type="NMS" with
# postprocess_match_metric="IOU" if the slices overlap by more than an object.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q sahi==0.12.8 numpy
cd "$folder"
"$folder/venv/bin/python" - <<'PY'
import inspect
from importlib.metadata import version

import numpy as np
from sahi.models.base import DetectionModel
from sahi.predict import get_prediction, get_sliced_prediction
from sahi.prediction import ObjectPrediction

print("sahi", version("sahi"), "numpy", np.__version__)


class Fixed(DetectionModel):
    """A detector that finds the same boxes of persons in every picture."""

    required_packages = []
    has_mask = False
    num_categories = 1
    category_names = ["person"]

    def __init__(self, boxes):
        self.boxes = boxes
        super().__init__(model=object(), confidence_threshold=0.3, category_mapping={"0": "person"}, device="cpu")

    def set_model(self, model, **_):
        self.model = model

    def perform_inference(self, image):
        self._original_predictions = self.boxes

    def _create_object_prediction_list_from_original_predictions(self, shift_amount_list=None, full_shape_list=None):
        self._object_prediction_list_per_image = [
            [
                ObjectPrediction(
                    bbox=list(box), score=score, category_id=0, category_name="person", full_shape=[600, 600]
                )
                for box, score in self._original_predictions
            ]
        ]


def listed(result):
    return sorted(
        ([int(v) for v in one.bbox.to_xyxy()], float(one.score.value)) for one in result.object_prediction_list
    )


defaults = inspect.signature(get_sliced_prediction).parameters
print("by default:", *(f"{name}={defaults[name].default}" for name in defaults if name.startswith("postprocess")))
picture = np.zeros((600, 600, 3), np.uint8)
SCENES = {
    "two persons side by side": [((100, 100, 200, 400), 0.9), ((140, 100, 240, 400), 0.8)],
    "a child before an adult": [((100, 100, 200, 400), 0.6), ((130, 300, 160, 390), 0.9)],
}
slices = {"slice_height": 600, "slice_width": 600, "verbose": 0}
for scene, boxes in SCENES.items():
    model = Fixed(boxes)
    plain = listed(get_prediction(picture, model))
    sliced = listed(get_sliced_prediction(picture, model, **slices))
    by_nms = listed(
        get_sliced_prediction(picture, model, **slices, postprocess_type="NMS", postprocess_match_metric="IOU")
    )
    print(f"{scene}: plain {plain}, one slice {sliced}, with NMS by IoU {len(by_nms)} boxes")
    assert len(plain) == len(by_nms) == 2
    around = [min(box[0] for box, _ in plain), 100, max(box[2] for box, _ in plain), 400]
    assert sliced == [(around, 0.9)], "sahi has changed"
PY
