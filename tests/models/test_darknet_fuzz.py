"""Damaged cfg and weights quickly give a ModelError of one line, or a valid network."""

import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detector.core.errors import ModelError
from detector.core.models.formats.darknet import layers as plan_module
from tests.networks import cfg_text, open_network
from tests.properties import STEADY

pytestmark = pytest.mark.slow
CFG = cfg_text(
    "net width=32 height=32 channels=3",
    "convolutional batch_normalize=1 filters=4 size=3 stride=2 pad=1 activation=leaky",
    "route layers=-1 groups=2 group_id=1",
    "convolutional filters=2 size=3 pad=1 groups=2 activation=mish",
    "shortcut from=-2 activation=linear",
    "maxpool size=2 stride=2",
    "upsample stride=2",
    "route layers=-1,0",
    "dropout",
    "convolutional filters=7 activation=linear",
    "yolo mask=0 anchors=4,4,8,8 classes=2 num=2 scale_x_y=1.05",
).encode()
FLOATS = 4 * 4 + 4 * 27 + 2 + 2 * 9 + 7 + 7 * 6
FUZZ = settings(STEADY, max_examples=150)

words = st.sampled_from(
    b"net convolutional yolo route shortcut maxpool upsample avgpool crnn width filters size "
    b"stride pad padding groups group_id layers from mask anchors classes num dilation activation "
    b"leaky swish scale_x_y new_coords".split()
)
pieces = st.one_of(
    words,
    words.map(lambda word: b"\n[" + word + b"]\n"),
    st.integers(-(10**12), 10**12).map(lambda n: b"%d" % n),
    st.sampled_from([*b"0 -1 1 2 999999999 1e9 nan inf -0 0x10 1_0".split(), b"", b"\n"]),
    st.sampled_from([*b"= , [ ] # ;".split(), b" ", b"\r", b"\0"]),
    st.sampled_from([b"\xff", b"\xef\xbb\xbf", b"\xe2\x80\xa8"]),  # bad UTF-8, BOM, line separator
    st.binary(max_size=8),
)
changes = st.lists(
    st.tuples(st.integers(0, len(CFG)), st.integers(0, 12), st.lists(pieces, max_size=3)),
    max_size=4,
)


@pytest.fixture(autouse=True)
def small_limits(monkeypatch):
    """Lower the limits, so that networks that would take more than milliseconds are refused."""
    monkeypatch.setattr(plan_module, "MAX_TENSOR", 1 << 20)
    monkeypatch.setattr(plan_module, "MAX_FLOATS", 1 << 18)


def valid_or_refused(path: Path, **more) -> bool:
    refused = ""
    try:
        network = open_network(str(path), **more)
    except ModelError as error:
        refused = str(error)
    assert "\n" not in refused
    assert "ONNX checker rejects" not in refused, "the plan accepted an impossible graph"
    if refused:
        return False
    assert network.parameters > 0
    assert all(
        len(shape) == 4 and shape[1] % (5 + len(network.names)) == 0
        for shape in network.output_shapes
    )
    return True


@FUZZ
@given(changes)
def test_damaged_cfg_is_refused_or_valid(tmp_path, changed):
    data = CFG
    for at, drop, put in changed:
        data = data[:at] + b"".join(put) + data[at + drop :]
    path = tmp_path / "t.cfg"
    path.write_bytes(data)
    assert valid_or_refused(path, random_seed=1) or changed


sections = st.sampled_from(
    ["convolutional", "maxpool", "route", "shortcut", "upsample", "avgpool", "dropout", "yolo"]
)
keys = st.sampled_from(
    (
        "filters size stride stride_x pad padding dilation groups group_id layers "
        "from batch_normalize activation"
    ).split()
)
values = st.one_of(
    st.integers(-3, 9).map(str), st.sampled_from(["leaky", "mish", "linear", "-1,-2", "-1,0", "-2"])
)


@FUZZ
@given(st.lists(st.tuples(sections, st.dictionaries(keys, values, max_size=5)), max_size=8))
def test_arbitrary_layers_are_refused_or_valid(tmp_path, layers):
    """Sections with plausible keys reach code that damaged bytes do not reach."""
    text = "[net]\nwidth=64\nheight=64\n[convolutional]\nfilters=4\nstride=2\nactivation=linear\n"
    for name, pairs in layers:
        pairs = {"filters": "4", **pairs} if name == "convolutional" else pairs
        numbers = "".join(f"{key}={value}\n" for key, value in pairs.items())
        text += f"[{name}]\n{numbers}"
    text += "[convolutional]\nfilters=7\nactivation=linear\n[yolo]\nanchors=4,4\nclasses=2\n"
    path = tmp_path / "t.cfg"
    path.write_text(text)
    valid_or_refused(path, random_seed=1)


@FUZZ
@given(
    st.binary(max_size=30),
    st.integers(-40, 40),
    st.lists(st.tuples(st.integers(0, 900), st.binary(max_size=8))),
)
def test_damaged_weights_are_refused_or_valid(tmp_path, head, longer, patches):
    data = bytearray(struct.pack("<3iq", 0, 2, 5, 0) + struct.pack("<f", 0.5) * FLOATS)
    data[: len(head)] = head
    for at, put in patches:
        data[at : at + len(put)] = put
    data = data + bytes(longer) if longer >= 0 else data[:longer]
    path = tmp_path / "t.cfg"
    path.write_bytes(CFG)
    path.with_suffix(".weights").write_bytes(data)
    valid = valid_or_refused(path)
    assert valid or head or longer or patches
