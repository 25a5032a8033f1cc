"""A weights file is read to its end, or refused in one line."""

import hashlib
import struct
from pathlib import Path

import numpy as np
import pytest

from detector.core.errors import ModelError
from detector.core.models import catalogue
from detector.core.models.formats.darknet.cfg import parse_cfg
from detector.core.models.formats.darknet.layers import read_architecture
from detector.core.models.formats.darknet.weights import random_weights, read_weights
from tests.networks import open_network, refusal

CFG = (
    "[net]\nwidth=8\nheight=8\n"
    "[convolutional]\nbatch_normalize=1\nfilters=4\nsize=3\npad=1\nactivation=leaky\n"
    "[convolutional]\nfilters=7\nactivation=linear\n"
    "[yolo]\nanchors=4,4\nclasses=2\n"
)
FLOATS = 4 * 4 + 4 * 3 * 9 + 7 + 7 * 4


@pytest.fixture
def cfg(tmp_path: Path) -> Path:
    path = tmp_path / "t.cfg"
    path.write_text(CFG)
    return path


def plan(text: str = CFG):
    return read_architecture(parse_cfg(text, "t.cfg")[0])


def stored(filters) -> bytes:
    parts = []
    for one in filters:
        norm = [] if one.scales is None else [one.scales, one.means, one.variances]
        parts += [one.biases, *norm, one.weights]
    return b"".join(part.astype("<f4").tobytes() for part in parts)


def write(cfg: Path, numbers: bytes, header: bytes = struct.pack("<3iq", 0, 2, 5, 0)) -> None:
    cfg.with_suffix(".weights").write_bytes(header + numbers)


@pytest.mark.slow
def test_random_weights_follow_the_recipe_of_the_reference():
    """The sha256 for seed 7 comes from REFERENCE.md in the shared folder."""
    text = (catalogue.folder() / "darknet/yolov4-tiny-person-vehicle.cfg").read_text()
    data = struct.pack("<3iq", 0, 2, 5, 0) + stored(random_weights(plan(text), 7))
    assert len(data) == 23_530_556
    assert (
        hashlib.sha256(data).hexdigest()
        == "ce0ae0592c8a73357c4cef2668a5afc0c77aa1d6e10c1a63cdfe81519cd6a1dc"
    )


@pytest.mark.parametrize(
    ("major", "minor", "seen"),
    [
        (0, 2, struct.pack("<q", 9)),  # every file since 2016
        (1, 0, struct.pack("<q", 9)),
        (0, 1, struct.pack("<i", 9)),  # older files: four bytes less
    ],
)
def test_header_may_have_a_counter_of_4_or_8_bytes(cfg, major, minor, seen):
    write(cfg, stored(random_weights(plan(), 3)), struct.pack("<3i", major, minor, 0) + seen)
    found = read_weights(cfg.with_suffix(".weights"), plan())
    for one, other in zip(found, random_weights(plan(), 3), strict=True):
        np.testing.assert_array_equal(one.weights, other.weights)
        np.testing.assert_array_equal(one.biases, other.biases)
    np.testing.assert_array_equal(found[0].variances, random_weights(plan(), 3)[0].variances)


@pytest.mark.parametrize(
    ("cut", "message"),
    [
        (-4, f"needs {FLOATS} floats, this file has {FLOATS - 1}: truncated, or are these"),
        (-1, f"needs {FLOATS} floats, this file has {FLOATS - 1} and 3 stray bytes: truncated"),
        (-4 * FLOATS, f"needs {FLOATS} floats, this file has 0: truncated"),
        (4, f"needs {FLOATS} floats, this file has {FLOATS + 1}: are these"),
        (40_000, f"needs {FLOATS} floats, this file has {FLOATS + 10_000}: are these"),
    ],
)
def test_too_few_and_too_many_floats_are_counted(cfg, cut, message):
    numbers = bytes(FLOATS * 4)
    write(cfg, numbers[:cut] if cut < 0 else numbers + bytes(cut))
    assert message in refusal(str(cfg))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty; download it again"),
        (b"\0" * 15, "15 bytes"),
        (b"not weights", "11 bytes"),
        (b"version https://git-lfs.github.com/spec/v1\noid", "is a Git LFS pointer, not the file"),
        (b"<!DOCTYPE html>\n<title>404</title>", "is a web page, not a model; download it again"),
    ],
)
def test_weights_file_without_a_header_is_refused(cfg, data, message):
    cfg.with_suffix(".weights").write_bytes(data)
    with pytest.raises(ModelError, match=message):
        open_network(str(cfg))


@pytest.mark.parametrize("value", [np.nan, np.inf, -1e38])
def test_error_about_weights_that_are_not_finite_mentions_the_layer(cfg, value):
    filters = random_weights(plan(), 3)
    filters[0].variances[2] = value  # -1e38: a negative variance
    write(cfg, stored(filters))
    if value == np.inf:  # 1 / sqrt(inf) = 0: a dead filter, but finite
        open_network(str(cfg))
        return
    with pytest.raises(ModelError, match=r"t\.cfg:4: .* \[convolutional\] .* finite"):
        open_network(str(cfg))


def test_a_signalling_nan_is_refused_without_a_warning(cfg):
    write(cfg, b"\0\0\x81\x7f" * FLOATS)
    with pytest.raises(ModelError, match="finite"):
        open_network(str(cfg))


def test_weights_may_be_given_or_random_but_not_both(cfg, tmp_path):
    with pytest.raises(ModelError, match=r"--weights FILE .*--random-weights"):
        open_network(str(cfg))
    elsewhere = tmp_path / "other.bin"
    elsewhere.write_bytes(struct.pack("<3iq", 0, 2, 5, 0) + stored(random_weights(plan(), 3)))
    given = open_network(str(cfg), weights=str(elsewhere))
    drawn = open_network(str(cfg), random_seed=3)
    assert given.graph.graph == drawn.graph.graph
    assert given.sha256 != drawn.sha256
    assert given.random_seed is None
    assert not any("meaningless" in line for line in given.warnings)
    assert any("(seed 3)" in line for line in drawn.warnings)
    assert drawn.graph.graph != open_network(str(cfg), random_seed=4).graph.graph
    with pytest.raises(ModelError, match=r"absent.*No such file"):
        open_network(str(cfg), weights=str(tmp_path / "absent"))
    with pytest.raises(ModelError, match="a seed is"):
        open_network(str(cfg), random_seed=2**32)
