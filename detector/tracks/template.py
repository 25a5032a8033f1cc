"""Write the files of ``detect-video zones``: a template of zones.yaml, and a page for drawing.

The page needs no server and loads no files. The lines and zones in the template are commented out,
so that only the user's are counted.
"""

from __future__ import annotations

import base64
import json
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2

from detector.core.config.schema import Config
from detector.core.errors import OutputError, SourceError, UsageError
from detector.core.errors.addresses import Address
from detector.core.errors.guard import keep_listed
from detector.core.errors.writing import write_whole
from detector.core.run.inputs import is_camera
from detector.core.run.outputs import MAX_NAMES, stem_of
from detector.core.run.reading import SourceReading
from detector.core.sources._forms import is_live
from detector.core.sources._network.addresses import last_part_of
from detector.core.types import Frame, Image

PAGE = Path(__file__).with_name("site") / "zones.html"
ABOUT, CODE = '"__ABOUT__"', "__DRAW__"  # placeholders in a page: its data, the code for drawing
ENDINGS = (".yaml", ".html")

TEMPLATE = """\
# Lines and zones of {name}. Count with:
#   detect-video {name} --zones {file}
# Draw them in {page} and save its file over this one, or write them here, without the #.
size: [{width}, {height}]    # of the picture that the points below refer to
every: 60              # seconds per row of counts
point: bottom          # which point of a box counts: the middle of its lower edge, or centre
# classes: [person]    # what to count; default: every class
# lines:
#   door:              # stand at the first point and look at the second: "in" crosses from left to
#                      # right. An arrow in the video shows it. Swap the points to reverse it.
#     points: [[{x1}, {y2}], [{x2}, {y2}]]
#     in: entering     # what the two directions are called
#     out: leaving
# zones:
#   yard:
#     points: [[{x1}, {y1}], [{x2}, {y1}], [{x2}, {y3}], [{x1}, {y3}]]
#     classes: [person]
#     stays: 30        # an event when an object stays for this many seconds
# cameras: {{front: {{lines: ..., zones: ...}}}}    # instead of the above, for one camera
# clips: {{"entrance*.mp4": {{lines: ...}}}}          # the same, for files of this name
"""


def write_template(spec: str, config: Config, output: str | None) -> list[Path]:
    """Write the template and the page of a source. Raises UsageError, SourceError, OutputError."""
    from detector.core import sources

    live = is_camera(spec)
    if live and os.path.exists(spec) and not is_live(spec):
        raise UsageError(f"{spec}: is a list of cameras; give the address of one of them")
    if not live:
        keep_listed("the source", lambda: sources.files_of(spec))
    frame = _first_frame(spec, config)
    stem = frame.arrival.camera if frame.arrival else stem_of(spec)
    name = Address(spec).shown if live else Path(spec).name
    if live and os.path.lexists(f"{stem}-zones{ENDINGS[0]}"):
        stem = f"{stem}-{last_part_of(Address(spec))}"
    paths = choose_paths(f"{stem}-zones", ENDINGS, output)
    picture = frame.image
    height, width = picture.shape[:2]
    yaml, page = paths
    text = TEMPLATE.format(
        **{"name": shlex.quote(name), "file": shlex.quote(yaml.name)},
        **{"page": page.name, "width": width, "height": height},
        **{"x1": width // 4, "x2": 3 * width // 4},
        **{"y1": height // 4, "y2": height // 2, "y3": 3 * height // 4},
    )
    write_whole(yaml, text.encode())
    write_whole(page, _make_page(picture, name, yaml))
    return paths


def choose_paths(stem: str, endings: Sequence[str], output: str | None) -> list[Path]:
    """Return paths of files that do not exist yet. Raises UsageError, OutputError."""
    names = [stem, *(f"{stem}-{number}" for number in range(2, MAX_NAMES))]
    if output is not None:
        target = Path(output)
        if target.suffix.replace(".yml", ".yaml") != endings[0]:
            raise UsageError(f"--output {output}: give a name that ends in {endings[0]}")
        names, endings = [str(target.with_suffix(""))], (target.suffix, *endings[1:])
    for name in names:
        paths = [Path(f"{name}{ending}") for ending in endings]
        if not any(os.path.lexists(path) for path in paths):
            return paths
    raise OutputError(f"{names[0]}{endings[0]}: already exists; choose another name with -o")


def _first_frame(spec: str, config: Config) -> Frame:
    with SourceReading.of(config).open(spec) as source:
        for frame in source:
            return replace(frame, picture=frame.image.copy())
    raise SourceError(f"{spec}: no frame could be read")


def _make_page(picture: Image, name: str, file: Path) -> bytes:
    height, width = picture.shape[:2]
    succeeded, data = cv2.imencode(".jpg", picture)
    if not succeeded:
        raise OutputError("the still cannot be encoded; choose another moment with --start")
    still = base64.b64encode(data.tobytes()).decode()
    about = {"width": width, "height": height, "name": name, "file": file.name}
    return fill_page(PAGE, {"still": f"data:image/jpeg;base64,{still}", **about})


def fill_page(page: Path, about: Mapping[str, Any]) -> bytes:
    safe = json.dumps(about).replace("<", "\\u003c")
    text, code = (page.with_name(name).read_text("utf-8") for name in (page.name, "draw.js"))
    return text.replace(CODE, code).replace(ABOUT, safe).encode()
