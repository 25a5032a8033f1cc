"""Make small valid files, whose bytes the attacks damage. Each file is made once per process."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import av

from tests.golden import inputs
from tests.networks import cfg_text

# name -> codec, pixel format. Each clip has 8 frames of 96x64.
CLIPS = {
    "h264.mp4": ("libx264", "yuv420p"),
    "mpeg4.mp4": ("mpeg4", "yuv420p"),
    "lossless.mkv": ("ffv1", "bgr0"),
    "h264.mkv": ("libx264", "yuv420p"),
    "mjpeg.avi": ("mjpeg", "yuvj420p"),
    "mpeg4.avi": ("mpeg4", "yuv420p"),
    "flash.flv": ("flv", "yuv420p"),
    "mpeg2.ts": ("mpeg2video", "yuv420p"),
    "h264.ts": ("libx264", "yuv420p"),
    "mpeg4.mov": ("mpeg4", "yuv420p"),
    "animation.gif": ("gif", "rgb8"),
    "vp9.webm": ("libvpx-vp9", "yuv420p"),
    "fragmented.mp4": ("libx264", "yuv420p"),
    "hevc.mkv": ("libx265", "yuv420p"),
    "stream.h264": ("libx264", "yuv420p"),
    "plain.y4m": ("rawvideo", "yuv420p"),
}
OPTIONS = {"fragmented.mp4": {"movflags": "frag_keyframe+empty_moov"}}
FRAMES = 8
PICTURES = ("p.png", "p.jpg", "p.webp", "p.tif", "p.bmp", "p.heic")
ENGINES = ("--engines-dir", "../engines")  # an empty ./engines would count as a fault of the run
NULL = ("--model", "dots.onnx", "--engine", "null", *ENGINES)


@cache
def content(name: str) -> bytes:
    """Return the content of a file that this module or ``tests.golden.inputs`` provides."""
    if name == "hevc.mkv":
        return _make_bytes(name, _hevc)
    if name in CLIPS:
        codec, pixels = CLIPS[name]
        more = OPTIONS.get(name, {})
        return _make_bytes(name, lambda path: inputs.clip(path, codec, pixels, FRAMES, **more))
    if name == "p.heic":
        return (Path(__file__).parents[1] / "sources/tiles.heic").read_bytes()
    if name in PICTURES:
        return _make_bytes(name, lambda path: inputs.picture(path, 3, (48, 32)))
    return _make_bytes(name, _MAKERS.get(name) or inputs.MAKERS[name])


def _hevc(path: Path) -> None:
    """Encode HEVC with options of x265, since only these silence the log of x265."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx265", 25, {"x265-params": "log-level=none:bframes=2"})
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p"
        for at in range(FRAMES):
            frame = av.VideoFrame.from_ndarray(inputs.scene(at), format="bgr24")
            frame.pts, frame.time_base = at, Fraction(1, 25)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


def _make_bytes(name: str, make: Callable[[Path], object]) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder) / name)
        return (Path(folder) / name).read_bytes()


def tree(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@cache
def pictures() -> Mapping[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        inputs.pictures(Path(folder) / "pictures")
        return tree(Path(folder))


CFG = cfg_text(
    "net width=64 height=64 channels=3",
    "convolutional batch_normalize=1 filters=4 size=3 stride=2 pad=1 activation=leaky",
    "maxpool size=2 stride=2",
    "convolutional filters=6 size=1 activation=mish",
    "route layers=-1,-2",
    "upsample stride=2",
    "shortcut from=-1 activation=linear",
    "route layers=-3",
    "convolutional filters=21 size=1 stride=1 activation=linear",
    "yolo mask=0,1,2 anchors=10,14,23,27,37,58 classes=2 num=3 scale_x_y=1.05",
)


def _weights(path: Path) -> None:
    import numpy as np

    from detector.core.models.formats.darknet.cfg import read_cfg
    from detector.core.models.formats.darknet.layers import read_architecture

    cfg = path.with_suffix(".cfg")
    cfg.write_text(CFG)
    sections, _ = read_cfg(cfg)
    floats = read_architecture(sections).floats
    # All positive, since a batch norm with a negative variance would be refused.
    numbers = np.abs(np.random.default_rng(0).normal(0.2, 0.1, floats)).astype("<f4") + 0.1
    path.write_bytes(bytes([0, 0, 0, 0, 2, 0, 0, 0, 5, 0, 0, 0]) + bytes(8) + numbers.tobytes())


# A network of one convolution and one head, in YOLOv5's format.
YOLO: dict[str, Any] = {
    "nc": 2,
    "anchors": [[4, 4, 6, 5]],
    "backbone": [[-1, 1, "Conv", [8, 3, 2]]],
    "head": [[[-1], 1, "Detect", ["nc", "anchors"]]],
}


@cache
def yolo_tensors() -> Mapping[str, Any]:
    from detector.core.models.formats.yolo.blocks import Design
    from detector.core.models.formats.yolo.description import parse_description
    from tests.models.plain_yolo import random_tensors

    return random_tensors(Design(parse_description(YOLO, "t")).architecture(2048, 2048), 0)


def _yolo_yaml(path: Path) -> None:
    import yaml

    path.write_text(yaml.safe_dump(YOLO))


def _state_dict(path: Path) -> None:
    from tests.checkpoints import saved

    saved(path, {"model": dict(yolo_tensors()), "epoch": 3})


def _whole_model(path: Path) -> None:
    from tests.checkpoints import saved, whole_model

    saved(path, {"model": whole_model(yolo_tensors(), YOLO, names=["a", "b"]), "epoch": 1})


def _openvino(path: Path) -> None:
    import openvino

    from tests.models import exports

    source = exports.anchor_free().save(path.with_suffix(".onnx"))
    openvino.save_model(openvino.convert_model(source), path)


def _safetensors(path: Path) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, array in yolo_tensors().items():
        header[name] = {
            "dtype": "F32",
            "shape": array.shape,
            "data_offsets": [len(data), len(data) + array.nbytes],
        }
        data += array.tobytes()
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def _nsys(path: Path) -> None:
    from tests.lab.session.test_nsys import LOAD, export

    export(path, LOAD)


def _one_clip(frames: int) -> Callable[[Path], object]:
    return lambda path: inputs.clip(path, "mpeg4", "yuv420p", frames)


_MAKERS: dict[str, Callable[[Path], object]] = {
    "small.cfg": lambda path: path.write_text(CFG),
    "small.weights": _weights,
    "t.yaml": _yolo_yaml,
    "state.pt": _state_dict,
    "whole.pt": _whole_model,
    "t.safetensors": _safetensors,
    "m.xml": _openvino,
    "m.bin": lambda path: _openvino(path.with_suffix(".xml")),
    "nsys.sqlite": _nsys,
    "in.mp4": _one_clip(FRAMES),
    "long.mp4": _one_clip(60),
}


@cache
def session() -> Mapping[str, bytes]:
    """Return the files of a session with two sources and all passes, as path -> content."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for name in ("in.mp4", "dots.onnx"):
            (folder / name).write_bytes(content(name))
        done = subprocess.run(
            [sys.executable, "-m", "detector", "in.mp4", "in.mp4", *NULL, "--run-dir", "run",
            "--no-video"], cwd=folder, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"cannot make the session that the attacks damage: {done.stderr}")
        from tests.lab.report.sessions import with_passes

        return tree(with_passes(folder / "run"))


@cache
def labels(kind: str) -> Mapping[str, bytes]:
    from tests.lab.datasets import samples

    with tempfile.TemporaryDirectory() as place:
        getattr(samples, kind)(Path(place) / "set")
        return tree(Path(place))
