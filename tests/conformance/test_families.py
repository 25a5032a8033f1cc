"""All engines give the same outputs for each family's network. onnx's checker accepts its graph."""

import math
import os
from dataclasses import dataclass

import numpy as np
import onnx
import pytest

from detector.core import engines
from detector.core.engines.base import EngineOptions
from detector.core.models.base import Network
from detector.core.models.formats.yolo import network as yolo_network
from tests.conftest import night
from tests.networks import need_engine, open_network

COMPUTING = [name for name in engines.names() if name != "null"]
NETWORKS = [  # model, height, width. Together they have every supported stem, block and head.
    ("yolov4-tiny-person-vehicle", 96, 64),
    ("yolov5n.yaml", 64, 96),
    ("yolov5s-5.0.yaml", 64, 96),
    ("yolov5n6.yaml", 64, 128),
    ("yolov7-tiny.yaml", 64, 96),
    ("yolov7.yaml", 64, 96),
    ("yolov7-w6.yaml", 64, 64),
]
# These have 71 and 150 million weights, so only nightly tests run them. In every run,
# tests/models/test_yolo_blocks.py compares their blocks with numpy.
LARGE = [("yolov7x.yaml", 64, 64), ("yolov7-e6e.yaml", 64, 64)]


class FastRandom:
    """Replace numpy's RandomState, which takes eight seconds for the 150 million weights of the
    largest network. The tests do not depend on the numbers."""

    def __init__(self, seed: int) -> None:
        self._stream = np.random.Generator(np.random.SFC64(seed))

    def random_sample(self, shape: tuple[int, ...]) -> np.ndarray:
        return self._stream.random(shape)

    def standard_normal(self, shape: tuple[int, ...]) -> np.ndarray:
        """Return uniform numbers with the same mean and variance."""
        numbers = self._stream.random(shape, np.float32)
        numbers -= 0.5
        numbers *= math.sqrt(12)
        return numbers


@dataclass(frozen=True)
class Case:
    network: Network
    pictures: np.ndarray
    ort_outputs: dict[int, list[np.ndarray]]


def run_batches(engine: str, network: Network, pictures: np.ndarray) -> dict[int, list[np.ndarray]]:
    outputs = {}
    with engines.open(engine, network, EngineOptions(batch=2, requests=1)) as opened:
        request = opened.requests[0]
        for n in (2, 1):
            request.slot[:n] = pictures[:n]
            outputs[n] = [output.copy() for output in request.infer(n)]
    return outputs


@pytest.fixture(
    scope="module", params=[*NETWORKS, *map(night, LARGE)], ids="{0[0]}-{0[1]}-{0[2]}".format
)
def case(request: pytest.FixtureRequest) -> Case:
    """Share a case among all tests of a network: the largest network has 600 MB of weights."""
    model, height, width = request.param
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(np.random, "RandomState", FastRandom)
        # The weights are scaled by the outputs for a probe picture. 2x2 cells are enough here.
        patch.setattr(yolo_network, "PROBE_CELLS", 2)
        network = open_network(model, random_seed=0, size=(height, width), batch=2)
    pictures = np.random.default_rng(0).integers(0, 256, (2, height, width, 3), np.uint8)
    return Case(network, pictures, run_batches("ort", network, pictures))


@pytest.mark.slow
@pytest.mark.parametrize("engine", COMPUTING)
def test_engines_agree_on_full_and_partial_batches(case, engine):
    need_engine(engine)
    network = case.network
    answers = case.ort_outputs if engine == "ort" else run_batches(engine, network, case.pictures)
    for n, outputs in answers.items():
        assert [output.shape for output in outputs] == [
            (n, *shape[1:]) for shape in network.output_shapes
        ]
        for output, one in zip(outputs, case.ort_outputs[2], strict=True):
            np.testing.assert_allclose(output, one[:n], rtol=1e-3, atol=1e-3)
        one_picture = [output[:1] for output in outputs]
        assert network.dense(one_picture).shape[2] == 5 + len(network.names)
        candidates = network.head(one_picture, 0.01)
        assert np.isfinite(candidates.boxes).all()
        assert len(candidates.boxes) == len(candidates.scores) == len(candidates.class_ids)


@pytest.mark.slow
def test_onnx_checker_accepts_the_graph(case, tmp_path):
    """Run onnx's checker with strict shape inference on the file, weights included."""
    path = str(tmp_path / "x.onnx")
    onnx.save(case.network.graph, path)
    onnx.checker.check_model(path, full_check=True)
    shapes = [
        tuple(dim.dim_value for dim in info.type.tensor_type.shape.dim)
        for info in onnx.load(path).graph.output
    ]
    os.unlink(path)  # up to 600 MB, and pytest keeps the folders of three runs
    assert shapes == case.network.output_shapes
