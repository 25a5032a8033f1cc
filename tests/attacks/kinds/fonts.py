"""Damaged fonts for ``--font``, and class names with letters that the fonts may lack."""

from random import Random

from tests.attacks.case import Case, Kind, Limits, Pipe
from tests.attacks.inputs import ENGINES, content
from tests.attacks.mutate import NUMBERS, damage
from tests.fonts import make_font

CODES = frozenset({0, 2})
LETTERS = "行人车אבשخص0.91 "
NAMES = ("行人", "אב", "شخص", "车 red", "e\u0301", "人" * 300, "👍", "person")


def make(random: Random) -> Case:
    letters = random.sample(LETTERS, random.randrange(1, len(LETTERS)))
    font: bytes | Pipe = make_font(
        {letter: random.choice((0, 1, 300, 900, 32000)) for letter in letters},
        em=random.choice((16, 1000, 1000, 1000, 16384)),
    )
    if random.random() < 0.6:
        font = damage(random, font)
    elif random.random() < 0.1:
        font = random.choice((Pipe(), b"", bytes(NUMBERS[0] % 256 for _ in range(1000))))
    names = "\n".join(random.choices(NAMES, k=3)) + "\n"
    files = {
        "in.mp4": content("in.mp4"),
        "dots.onnx": content("dots.onnx"),
        "n.names": names.encode(),
        "f.ttf": font,
    }
    size = random.choice(("1", "1", "0.1", "20"))
    argv = ("in.mp4", "--model", "dots.onnx", "--engine", "ort", *ENGINES, "--names", "n.names")
    argv += ("--font", "f.ttf", "--font-scale", size, "--save", "pictures", "--frames", "2")
    limits = Limits(wall_s=120, cpu_s=60, memory_mb=3000, address_space_mb=None)
    return Case(files, argv, CODES, limits=limits, fresh=True)


KIND = Kind("fonts", make, share=0.4, first=20)
