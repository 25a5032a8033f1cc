"""The null engine returns outputs without detections for any model."""

import pytest

from detector.core import engines
from tests.networks import open_network


@pytest.mark.parametrize("conf", [0.001, 0.25])
@pytest.mark.parametrize("new_coords", [0, 1])
def test_outputs_have_the_right_shape_and_no_detection(tmp_path, conf, new_coords):
    path = tmp_path / "t.cfg"
    path.write_text(
        "[net]\nwidth=32\nheight=32\n[convolutional]\nfilters=7\nactivation=linear\n"
        f"[yolo]\nanchors=4,4\nclasses=2\nnew_coords={new_coords}\n"
    )
    network = open_network(str(path), random_seed=1)
    with engines.open("null", network) as engine:
        outputs = engine.requests[0].infer(1)
        assert [output.shape for output in outputs] == network.output_shapes
        assert len(network.head(outputs, conf).scores) == 0
