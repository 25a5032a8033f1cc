"""The error about a bad cfg gives path and line, what is wrong, and what would be right."""

from pathlib import Path

import pytest

from detector.core.errors import ModelError
from detector.core.models.formats.darknet.cfg import parse_cfg
from detector.core.models.formats.darknet.layers import read_architecture

CONV = "[convolutional]\nfilters=7\nactivation=linear\n"
YOLO = "[yolo]\nmask=0\nanchors=4,4, 8,8\nclasses=2\nnum=2\n"
NET = "[net]\nwidth=8\nheight=8\n"
GOOD = NET + CONV + YOLO  # lines 1-3, 4-6, 7-11


def plan(text: str, **more):
    sections, _ = parse_cfg(text, "x.cfg")
    return read_architecture(sections, **more)


def test_comments_white_space_and_line_ends_are_ignored():
    plain, _ = parse_cfg("[net]\nwidth=8\nsteps=1,2\n[yolo]\nmask=0\n", "x")
    odd, _ = parse_cfg(
        "# a\r\n[ net ] ; b\r\n\r\n wid th = 8 # c\r\nsteps = 1, 2\r\n\t[yolo]\r\nmask\t=0", "x"
    )
    assert [(s.name, {k: v[0] for k, v in s.values.items()}) for s in plain] == [
        (s.name, {k: v[0] for k, v in s.values.items()}) for s in odd
    ]
    assert [s.line for s in odd] == [2, 6]
    assert odd[0].values["width"] == ("8", 4)


def test_an_empty_value_means_the_default():
    sections, _ = parse_cfg("[net]\nchannels=\n", "x")
    assert sections[0].integer("channels", 3) == 3


def test_first_of_repeated_keys_applies_as_in_darknet():
    sections, warnings = parse_cfg("[net]\nbatch=1\nwidth=8\nbatch=64\nwidth=8\n", "x.cfg")
    assert sections[0].integer("batch") == 1
    [warning] = warnings
    for fact in ("x.cfg:4", "batch='64'", "batch='1'", "line 2"):
        assert fact in warning


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "x.cfg:1: no [section]"),
        ("width=8\n" + GOOD, "x.cfg:1: width= comes before the first [section]"),
        (NET + "[conv\n", "x.cfg:4: '[conv' is not a section"),
        (NET + "filters 7\n", "x.cfg:4: 'filters7' is neither"),
        ("[yolo]\n" + GOOD, "x.cfg:1: the first section is [yolo]"),
        (NET + "[lstm]\n", "x.cfg:4: section [lstm] is not supported"),
        (NET, "x.cfg:1: there is no [yolo] section"),
        (NET + CONV, "x.cfg:1: there is no [yolo] section"),
        ("[net]\nwidth=8\nheight=eight\n" + CONV + YOLO, "x.cfg:3: height='eight' is not"),
        ("[net]\nwidth=8\n" + CONV + YOLO, "x.cfg:1: [net] needs height=NUMBER"),
        ("[net]\nwidth=1000000000\nheight=8\n" + CONV + YOLO, "x.cfg:2: width=1000000000"),
        (
            "[net]\nwidth=8\nheight=8\nchannels=1\n" + CONV + YOLO,
            "x.cfg:4: channels=1: only pictures of 3",
        ),
        (
            GOOD.replace("filters=7", "filters=1000000000"),
            "x.cfg:4: [convolutional] gives 1000000000 channels",
        ),
        (GOOD.replace("filters=7", "filters=9" + "9" * 5000), "x.cfg:5: filters='9999"),
        (GOOD.replace("filters=7\n", ""), "x.cfg:4: [convolutional] needs filters=NUMBER"),
        (GOOD.replace("filters=7", "filters=21"), "x.cfg:7: [yolo] has 1 mask, classes=2;"),
        (GOOD.replace("linear", "lineer"), "x.cfg:6: activation 'lineer' is not supported"),
        (GOOD.replace("filters=7", "filters=7\ngroups=2"), "x.cfg:6: groups=2 "),
        (GOOD.replace("filters=7", "filters=7\nsize=9"), "x.cfg:4: [convolutional] makes"),
        (GOOD.replace("filters=7", "filters=7\nsize=3\nstride=0"), "x.cfg:7: stride=0"),
        (GOOD.replace("filters=7", "filters=7\nxnor=1"), "x.cfg:6: xnor='1' in [convolutional]"),
        (NET + "[route]\nlayers=-1\n", "x.cfg:5: layers=-1 means layer -1; this is layer 0"),
        (NET + CONV + "[route]\nlayers=5\n", "x.cfg:8: layers=5 means layer 5; this is layer 1"),
        # a layer that reads itself: a cycle
        (NET + CONV + "[route]\nlayers=1\n", "x.cfg:8: layers=1 means layer 1; this is layer 1"),
        (NET + CONV + "[route]\n", "x.cfg:7: [route] needs layers=NUMBER"),
        (GOOD + "[route]\nlayers=-1\n", "x.cfg:13: layers=-1 means layer 1, a [yolo]"),
        (GOOD + CONV, "x.cfg:12: [convolutional] reads the output of the [yolo] before it"),
        (
            NET + CONV + "[maxpool]\nsize=2\nstride=2\n[route]\nlayers=0,1\n",
            "[route] joins different sizes: layer 0 is 8x8",
        ),
        (NET + CONV + "[route]\nlayers=0\ngroups=2\n", "x.cfg:9: groups=2 does not divide"),
        (NET + CONV + "[route]\nlayers=0\ngroups=7\ngroup_id=7\n", "x.cfg:10: group_id=7"),
        (
            NET + CONV + "[maxpool]\nsize=2\nstride=2\n[shortcut]\nfrom=0\n",
            "[shortcut] adds different sizes: layer 1 is 4x4, layer 0 is 8x8",
        ),
        (
            NET + CONV + CONV.replace("7", "8") + "[scale_channels]\nfrom=0\n",
            "[scale_channels] multiplies layer 0, 8x8x7, by layer 1, 8x8x8; expected 1x1x7",
        ),
        (
            NET + CONV + "[avgpool]\n[scale_channels]\nfrom=0\nscale_wh=1\n",
            "[scale_channels] multiplies layer 0, 8x8x7, by layer 1, 1x1x7; expected 8x8x1",
        ),
        (
            NET + CONV + CONV.replace("7", "8") + "[sam]\nfrom=0\n",
            "[sam] multiplies layer 0, 8x8x7, by layer 1, 8x8x8; expected 8x8x7",
        ),
        (NET + CONV + "[sam]\nfrom=0,0\n", "[sam] needs from=NUMBER, with one layer"),
        (NET + CONV + "[maxpool]\nsize=2\npadding=40\n", "x.cfg:9: padding=40 puts whole windows"),
        (NET + CONV + "[upsample]\nstride=-2\n", "x.cfg:8: stride=-2 is out of range"),
        (GOOD.replace("mask=0", "mask=2"), "x.cfg:8: mask=2 is out of range: there are 2 anchors"),
        (GOOD.replace("anchors=4,4, 8,8", "anchors=4,4,8"), "x.cfg:9: [yolo] needs anchors=W,H"),
        (GOOD.replace("anchors=4,4, 8,8", "anchors=4,nan"), "x.cfg:9: anchors='nan' is not"),
        (GOOD.replace("anchors=4,4, 8,8", "anchors=4,-4"), "x.cfg:9: anchors must be between 0"),
        (GOOD.replace("num=2", "num=3"), "x.cfg:11: num=3, but anchors= has 2 pairs"),
        (GOOD.replace("filters=7", "filters=7\nstride=16"), "x.cfg:3: input height 8"),
    ],
)
def test_error_mentions_the_line_of_the_mistake(text: str, message: str):
    with pytest.raises(ModelError) as caught:
        plan(text)
    error = str(caught.value)
    assert message in error, error
    assert error.startswith("x.cfg:")
    assert "\n" not in error
    assert len(error) < 400


def test_unknown_key_warns_with_the_nearest_known_key():
    architecture = plan(
        GOOD.replace("filters=7", "filters=7\nbatch_normalise=1\nlearning_rate_scale=2")
        + "jitter=.3\n"
    )
    [warning] = architecture.warnings
    for fact in ("x.cfg:6", "batch_normalise", "[convolutional]", "did you mean batch_normalize?"):
        assert fact in warning


def test_option_size_overrides_the_cfg_and_must_be_a_multiple_of_the_stride():
    text = GOOD.replace("filters=7", "filters=7\nsize=3\npad=1\nstride=4")
    architecture = plan(text, size=(16, 4))
    assert (architecture.height, architecture.width, architecture.stride) == (16, 4, 4)
    assert (architecture.layers[1].height, architecture.layers[1].width) == (4, 1)
    with pytest.raises(ModelError, match=r"--size.*18: 16$"):
        plan(text, size=(16, 18))
    with pytest.raises(ModelError, match=r"out of range.*--size"):
        plan(text, size=(0, 16))


def test_a_huge_batch_is_refused_before_any_memory_is_taken():
    with pytest.raises(ModelError, match=r"x\.cfg:4: .* at batch 1000000"):
        plan(GOOD, batch=1_000_000)


def test_many_weights_in_many_layers_are_refused():
    layer = "[convolutional]\nfilters=5000\nsize=3\npad=1\nactivation=linear\n"
    with pytest.raises(ModelError, match="400000000 weights"):
        plan(NET + layer * 3 + YOLO)


def test_binary_cfg_or_folder_is_refused(tmp_path: Path):
    from detector.core.models.formats.darknet.cfg import read_cfg

    (tmp_path / "a.cfg").write_bytes(bytes(range(256)) * 10)
    with pytest.raises(ModelError, match=r"a\.cfg:"):
        read_cfg(tmp_path / "a.cfg")
    with pytest.raises(ModelError, match="Is a directory"):
        read_cfg(tmp_path)
