"""Damaged OpenVINO models: the text of the .xml, the bytes of the .bin, the metadata."""

from importlib.util import find_spec
from random import Random

from tests.attacks.case import Case, Kind
from tests.attacks.inputs import ENGINES, content
from tests.attacks.mutate import damage, damage_text

# Exit code 5: OpenVINO is not installed, or fails to run the model.
CODES = frozenset({0, 2, 4, 5})
METADATA = (
    "task: detect\nstride: 32\nimgsz: [64, 64]\nnames: {0: a, 1: b, 2: c}\nargs: {nms: false}\n"
)
WORDS = tuple(
    'element_type="f16" element_type="u8" shape="1,3,64,64" shape="?,3,?,?" offset="99999999999" '
    'type="Parameter" type="Result" type="Const" version="opset1" from-layer="0" to-port="1" '
    '<dim>-1</dim> <dim>99999999</dim> <rt_info/> names="output0" precision="FP32"'.split(" ")
)


def make(random: Random) -> Case:
    if find_spec("openvino") is None:
        text, numbers = "<net/>", b""
    else:
        text, numbers = content("m.xml").decode(), content("m.bin")
    choice = random.random()
    metadata = METADATA.encode()
    if choice < 0.5:
        model = damage_text(random, text, WORDS)
    else:
        model = damage(random, text.encode()) if choice < 0.8 else text.encode()
    if choice > 0.7:
        numbers = damage(random, numbers)
    if random.random() < 0.3:
        metadata = damage_text(random, METADATA)
    files = {"m/m.xml": model, "m/m.bin": numbers, "m/metadata.yaml": metadata}
    if random.random() < 0.7:
        more = random.choice(([], ["--size", "96"], ["--batch", "2"]))
        return Case(files, ("models", "show", "m/m.xml", "--json", *more), CODES)
    files["in.mp4"] = content("in.mp4")
    return Case(files, ("in.mp4", "--model", "m", *ENGINES, "--no-video"), CODES)


KIND = Kind("openvino", make, share=4)
