"""Damaged darknet models: the text of the cfg, the bytes of the weights, the list of names."""

from random import Random

from tests.attacks.case import Case, Kind
from tests.attacks.inputs import CFG, ENGINES, content
from tests.attacks.mutate import damage, damage_text

CODES = frozenset({0, 2, 4})
WORDS = tuple(
    "[net] [convolutional] [maxpool] [route] [shortcut] [upsample] [yolo] [avgpool] [dropout] "
    "[connected] batch_normalize=1 filters=4 size=3 stride=2 pad=1 padding=9 groups=2 group_id=1 "
    "layers=-1,-2 from=-2 mask=0 anchors=1,2 classes=2 num=3 dilation=2 activation=swish "
    "[scale_channels] [sam] from=-1 from=0 scale_wh=1 "
    "new_coords=1 letter_box=1 stride_x=2 width=9999999 height=0 channels=0 "
    "truth_thresh=1 antialiasing=1 sam=1".split()
)


def make(random: Random) -> Case:
    cfg, weights = CFG.encode(), content("small.weights")
    choice = random.random()
    if choice < 0.6:
        cfg = damage_text(random, CFG, WORDS)
    if choice > 0.5:
        weights = damage(random, weights)
    files = {"m.cfg": cfg, "m.weights": weights}
    if random.random() < 0.2:
        files["m.names"] = damage_text(random, "person\nvehicle\n")
    more = random.choice(
        ([], [], ["--random-weights", "1"], ["--size", "96"], ["--size", "32x64"], ["--batch", "2"])
    )
    if random.random() < 0.6:
        return Case(files, ("models", "show", "m.cfg", "--json", *more), CODES)
    files["in.mp4"] = content("in.mp4")
    argv = ("in.mp4", "--model", "m.cfg", "--engine", "null", *ENGINES, "--no-video", *more)
    return Case(files, argv, CODES)


KIND = Kind("darknet", make, share=9)
