"""Descriptions of impossible networks are refused in one line, which names file and layer."""

import pytest
import yaml

from detector.core.errors import ModelError
from detector.core.models.formats.yolo.description import Activation, parse_activation
from tests.networks import open_network, refusal

GOOD = {
    "nc": 1,
    "anchors": [[4, 4]],
    "backbone": [[-1, 1, "Conv", [8, 3, 2]], [-1, 1, "Conv", [8, 3, 2]]],
    "head": [[[-1], 1, "Detect", ["nc", "anchors"]]],
}


def with_row(*row) -> dict:
    return {**GOOD, "backbone": [GOOD["backbone"][0], list(row)]}


DETECT = [[-1], 1, "Detect", ["nc", "anchors"]]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([], "does not describe a network; it needs the keys nc, depth_multiple"),
        ({}, "does not describe a network"),
        ({**GOOD, "nc": 0}, "Expected `int` >= 1 - at `$.nc`"),
        ({**GOOD, "ch": 4}, "`$.ch`"),
        ({**GOOD, "width_multiple": 0}, "`$.width_multiple`"),
        ({**GOOD, "depth_multiple": "x"}, "`$.depth_multiple`"),
        ({**GOOD, "activation": "nn.Softmax()"}, "activation 'nn.Softmax()' is not supported"),
        ({**GOOD, "anchors": "x"}, "`$[...]`"),
        ({**GOOD, "anchors": [[4, 4, 4]]}, "anchors of a detection layer must be pixels W,H"),
        ({**GOOD, "anchors": [[4, -4]]}, "Expected `float` > 0.0"),
        ({**GOOD, "anchors": [[4, 4], [5, 5]]}, "layer 2 (Detect): has 1 detection layers"),
        ({**GOOD, "anchors": None}, "layer 2 (Detect): neither the description nor the weights"),
        ({**GOOD, "backbone": "x"}, "`$.backbone`"),
        ({**GOOD, "backbone": [], "head": []}, "0 layers"),
        ({**GOOD, "backbone": [[-1, 1, "Conv"]]}, "`$.backbone[0]`"),
        ({**GOOD, "backbone": [[-1, 1, "Conv", [8]]] * 1200}, "a network has 1 to 1000"),
        ({**GOOD, "head": []}, "has no detection layer"),
        ({**GOOD, "head": [DETECT, DETECT]}, "layer 2 (Detect): a detection layer"),
        (with_row(-1, 1, "C3TR", [8]), "layer 1 (C3TR): this block is not supported"),
        (with_row(-1, 1, "__import__('os')", []), "`$.backbone[1][2]`"),
        (with_row(-3, 1, "Conv", [8]), 'layer 1 (Conv): "from" must name layers before it, not -3'),
        (with_row(1, 1, "Conv", [8]), 'layer 1 (Conv): "from" must name layers before it, not 1'),
        (with_row([], 1, "Conv", [8]), 'layer 1 (Conv): "from" must name layers before it, not []'),
        (with_row(-1, 0, "Conv", [8]), "`$.backbone[1][1]`"),
        (with_row(-1, 1, "Conv", 8), "`$.backbone[1][3]`"),
        (with_row(-1, 1, "Conv", []), "layer 1 (Conv): argument 1 must be a whole number from 1"),
        (with_row(-1, 1, "Conv", [8, 99]), "argument 2 must be a whole number from 1 to 31"),
        (with_row(-1, 1, "Conv", [8, 3, 1, None, 3]), "8 output channels into 3 groups"),
        (
            with_row(-1, 1, "Conv", [8, 3, 1, None, 1, "os.system('x')"]),
            "activation \"os.system('x')\" is not supported",
        ),
        (with_row(-1, 1, "C3", [8, 1]), "layer 1 (C3): argument 2 must be True or False, not 1"),
        (with_row(-1, 1, "SPP", [8, [4]]), "kernels must be odd"),
        (with_row(-1, 1, "SPPF", [8, 4]), "kernel 4 must be odd"),
        (with_row(-1, 1, "RepConv", [8, 5]), "only kernel 3 with padding 1 is supported"),
        (with_row(-1, 1, "SPPCSPC", [8, 1, True]), "only the argument for channels is supported"),
        (with_row([-1], 1, "Shortcut", [1]), "adds two layers, but 1 are given"),
        (with_row(-1, 1, "Concat", [2]), "only joining along the channels is supported"),
        (with_row(-1, 1, "nn.Upsample", [None, 2, "bilinear"]), "only the arguments [None, SCALE"),
        (with_row(-1, 1, "Detect", ["nc", "anchors"]), "a detection layer must be the last layer"),
        ({**GOOD, "backbone": [[-1, 1, "MP", []]]}, "layer 0 (MP): reads the picture"),
        (
            {**GOOD, "backbone": [[-1, 1, "ReOrg", []], [-1, 1, "ReOrg", []]]},
            "layer 1 (ReOrg): follows another such block",
        ),
        (
            {**GOOD, "backbone": [[-1, 1, "Conv", [8]], [-1, 1, "ReOrg", []], [-1, 1, "MP", []]]},
            "layer 2 (MP): reads the output of model.1; only a convolution can",
        ),
        ({**GOOD, "head": [[[0, 1], 1, "Concat", [1]], DETECT]}, "layer 2 (Concat): joins maps"),
        (with_row(-1, 100, "Conv", [65536, 3]), "gives 65536 channels of 1024x1024"),
        ({**GOOD, "backbone": [[-1, 1, "Conv", [8, 31, 8, 0]]] * 5}, "makes an empty map"),
        ({**GOOD, "backbone": [[-1, 1, "Conv", [64, 8, 8]]]}, "not a whole number of pixels"),
        (
            {
                **GOOD,
                "anchors": [[4, 4, 6, 5]],
                "backbone": [[-1, 1, "Conv", [8, 2]]],
                "head": [[[-1], 1, "Detect", ["nc", "anchors"]]],
            },
            "more cells than the picture",
        ),
        ("a: [", "t.yaml:1:"),
        ("!!python/object/apply:os.system [x]", "t.yaml:1:"),
        ("\0", "t.yaml:1:"),
        ("x" * (1 << 20) + "x", "1 MB"),
        # a billion laughs: references to references
        (
            "\n".join(
                ["nc: 1", "a0: &a0 [x]"]
                + [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]
                + ["backbone: *a11", "head: []"]
            ),
            "t.yaml:7:",
        ),
    ],
)
def test_refusal_of_a_wrong_description_names_the_layer(tmp_path, values, message):
    path = tmp_path / "t.yaml"
    path.write_text(values if isinstance(values, str) else yaml.safe_dump(values))
    reason = refusal(str(path), random_seed=1)
    assert message in reason
    assert reason.startswith(str(path))
    assert len(reason) < 500


@pytest.mark.parametrize(
    ("text", "activation"),
    [
        ("nn.SiLU()", Activation("silu")),
        ("torch.nn.SiLU(inplace=True)", Activation("silu")),
        ("nn.LeakyReLU(0.1)", Activation("leaky", 0.1)),
        ("nn.LeakyReLU(negative_slope=0.2, inplace=True)", Activation("leaky", 0.2)),
        ("nn.LeakyReLU()", Activation("leaky", 0.01)),  # torch's default
        ("nn.Identity()", Activation("linear")),
        ("nn.ELU(0.5)", None),
        ("nn.ReLU(3)", None),
        ("nn.LeakyReLU(9)", None),
        ("nn.LeakyReLU(1.1.1)", None),
        ("eval('1')", None),
        (1, None),
    ],
)
def test_activations_are_read_and_never_evaluated(text, activation):
    assert parse_activation(text) == activation


def test_an_unknown_key_is_a_warning(tmp_path):
    path = tmp_path / "t.yaml"
    path.write_text(yaml.safe_dump({**GOOD, "nd": 3}))
    network = open_network(str(path), random_seed=1, size=(8, 8))
    assert network.warnings[0] == f"{path}: key 'nd' unknown, ignored"


def test_users_file_is_preferred_to_the_packaged_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "yolov5s.yaml").write_text(yaml.safe_dump(GOOD))
    assert open_network("yolov5s.yaml", random_seed=1, size=(8, 8)).output_shapes == [(1, 6, 2, 2)]
    with pytest.raises(ModelError, match="no such file"):
        open_network("../yolov5s.yaml", random_seed=1)
    with pytest.raises(ModelError, match="no such file"):
        open_network("absent.yaml", random_seed=1)
