"""Damaged YAML configurations, lists of names, class mappings and descriptions of networks."""

from __future__ import annotations

from random import Random

from tests.attacks.case import Case, Kind
from tests.attacks.inputs import ENGINES, content
from tests.attacks.mutate import damage_text

# Nothing here names an output: a damaged path must not lead out of the case's folder.
OPTIONS = """# options
network:
  model: dots.onnx
  names: n.names
runtime: {engine: 'null', batch: 2, threads: 0}
selection:
  conf: 0.25
  iou: 0.45
  classes: [red, green]
  agnostic: false
input: {frames: 3, stride: 1, decoder: auto}
loop:
  sync: false
"""
NAMES = "red\ngreen\nblue\n"
WORDS = (
    "&a [*a]", "*a", "!!python/object/apply:os.system [id]", "<<: *x", "? [a]", "- - - -",
    "{a: {b: {c: 1}}}", "!!binary x", "2001-01-01", "0o17", "0b1", "190:20:30", "|", ">", "---",
    "...", "%YAML 9.9", "%TAG ! !", "@", "`", "'", '"', "[" * 3000, "{" * 3000,
    "names: {0: a, 1: b}", "names: [a, b, c]", "batch: [1]", "conf: .inf", "sync: yes",
)  # fmt: skip


def make(random: Random) -> Case:
    files = {
        "dots.onnx": content("dots.onnx"),
        "in.mp4": content("in.mp4"),
        "o.yaml": OPTIONS.encode(),
        "n.names": NAMES.encode(),
    }
    which = random.random()
    if which < 0.6:
        files["o.yaml"] = damage_text(random, OPTIONS, WORDS)
    elif which < 0.8:
        files["n.names"] = damage_text(random, NAMES, ("person",))
    else:
        return _described(random)
    argv = (*"in.mp4 --config o.yaml --engine null --model dots.onnx --save jsonl".split(),)
    if random.random() < 0.3:
        argv = (*argv, "--names", "n.names", "--json")
    return Case(files, (*argv, *ENGINES), frozenset({0, 2, 4}))


def _described(random: Random) -> Case:
    """The description of a network that its weights are read by."""
    text = content("t.yaml").decode()
    words = (
        *WORDS,
        "Conv",
        "Detect",
        "C3",
        "SPPF",
        "Concat",
        "nn.Upsample",
        "[-1, 1, Conv, [8, 3, 2]]",
        "nc: 99999999",
    )
    files = {"t.yaml": damage_text(random, text, words), "m.pt": content("state.pt")}
    more = random.choice((["--weights", "m.pt"], ["--random-weights", "1"]))
    argv = ("models", "show", "t.yaml", *more, "--size", "64", "--json")
    return Case(files, argv, frozenset({0, 2, 4}))


KIND = Kind("configs", make, share=7)
