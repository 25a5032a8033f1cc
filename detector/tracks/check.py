"""Write the page of ``zones check``, where a person judges crossings, and counts by hand."""

from __future__ import annotations

import base64
import csv
import io
import os
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from detector.core.config.schema import Config
from detector.core.errors import SourceError, UsageError
from detector.core.errors.reading import read_text
from detector.core.errors.text import from_cell
from detector.core.errors.writing import write_whole
from detector.core.run.outputs import stem_of
from detector.core.run.reading import SourceReading
from detector.core.stages.outlines import draw_outlines
from detector.tracks import counting
from detector.tracks.book import outlines
from detector.tracks.template import choose_paths, fill_page
from detector.tracks.zones_file import SIDES, read_zones

PAGE = Path(__file__).with_name("site") / "check.html"
TEXTS, NUMBERS = ("source", "zone", "event", "direction", "class", "side"), ("time_s", "x", "y")
LARGEST = 1 << 28  # bytes per file
SEED = 0  # seed of the random sample
AROUND_S = np.arange(-6, 3) * 0.25  # times of pictures relative to the crossing
STRETCH_STEP_S = 0.2
ROUNDED_S = 0.001  # times in files have three decimals
RING = (60, 220, 255)  # colour of the ring, BGR
ACROSS, QUALITY = 400, [cv2.IMWRITE_JPEG_QUALITY, 75]  # picture width, pixels; JPEG quality

Crossing = dict[str, Any]  # columns TEXTS and NUMBERS of the events file; "place": line and side


def write_check(
    counts: str, video: str, zones: str | None, output: str | None, sample: int, stretch: int
) -> tuple[Path, int, int]:
    """Write the page. Return its path, how many crossings it shows, and how many were counted.
    ``zones``: the file of the counted lines; ``stretch``: seconds to count by hand. Raises
    UsageError, SourceError, OutputError."""
    (target,) = choose_paths(f"{stem_of(video)}-check", (".html",), output)
    crossings = read_crossings(counts, video)
    footage = Footage(video, zones or f"{stem_of(video)}-zones.yaml", crossings)
    generator = random.Random(SEED)
    chosen = sorted(generator.sample(range(len(crossings)), min(sample, len(crossings))))
    first_s, last_s = crossings[0]["time_s"], crossings[-1]["time_s"]
    from_s = max(0.0, generator.uniform(first_s, max(first_s, last_s - stretch)) + AROUND_S[0])
    counted = Counter(row["place"] for row in crossings if 0 <= row["time_s"] - from_s < stretch)
    about = {
        "video": Path(video).name,
        "file": target.with_suffix(".json").name,
        "drawn": f"{len(chosen)} of {len(crossings)} crossings, drawn at random (seed {SEED})",
        "from_s": from_s,
        "crossings": [footage.show_around(crossings[i]) for i in chosen],
        "counted": {place: counted[place] for place in footage.places},
        "stretch": footage.show(np.arange(from_s, from_s + stretch, STRETCH_STEP_S)),
    }
    write_whole(target, fill_page(PAGE, about))
    return target, len(chosen), len(crossings)


def read_crossings(counts: str, video: str) -> list[Crossing]:
    """Return the crossings in the events file next to the counts, in order of time. Raises
    UsageError if the file is of another video, or does not match the counts."""
    events = counts.replace(".counts.csv", ".events.csv")
    if events == counts or not os.path.exists(events):
        raise UsageError(
            f"{counts}: give IN.counts.csv, with IN.events.csv (for the times) in its folder; "
            "for a camera, count and check a recording"
        )
    crossings = []
    for row in _read_rows(events, TEXTS, NUMBERS):
        if Path(row["source"]).name != Path(video).name:
            raise UsageError(f"{counts}: was counted in {row['source']}; give that video")
        if row["event"] == "crosses":
            crossings.append({**row, "place": f"{row['zone']} {row['side'] or row['direction']}"})
    if not crossings:
        raise UsageError(f"{counts}: nothing crossed a line; do the lines cross the objects' path?")
    counted = sum((Counter(row) for row in _read_rows(counts, (), SIDES)), Counter[str]())
    if counted != Counter(crossing["direction"] for crossing in crossings):
        raise UsageError(f"{counts}: its sums differ from those of {events}; count again")
    return sorted(crossings, key=lambda crossing: float(crossing["time_s"]))


def _read_rows(path: str, texts: Sequence[str], numbers: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield these columns of a CSV file of --zones. Raises UsageError."""
    text = read_text(path, "a file that --zones writes", limit=LARGEST)
    table = csv.DictReader(io.StringIO(text, newline=""))
    try:
        for row in table:
            values = {name: float(Fraction(row[name] or 0)) for name in numbers}  # rejects NaN
            yield {name: from_cell(row[name]) for name in texts} | values
    except (KeyError, AttributeError, ValueError, ArithmeticError, csv.Error) as error:
        raise UsageError(f"{path}:{table.line_num}: not a row of --zones; count again") from error


class Footage:
    """Makes small pictures of a video, with its lines. Raises SourceError, and UsageError if the
    crossings belong to another video or to other lines."""

    def __init__(self, video: str, zones: str, crossings: Sequence[Crossing]) -> None:
        if not os.path.exists(zones):
            raise UsageError(f"{zones}: does not exist; use --zones FILE, as when counting")
        zone_set, self._reading = read_zones(zones).of_clip(video), SourceReading.of(Config())
        with self._reading.open(video) as source:
            info = source.info
        if info.kind != "video":
            raise UsageError(f"{video}: not a video, so its frames have no times")
        self._video, self._begins_s = video, info.start_pts * info.time_base
        self._size = size = info.width, info.height
        lines = tuple(shape for shape in zone_set.shapes if shape.is_line)
        self.places = [f"{line.name} {side}" for line in lines for side in line.sides]
        counter = counting.Counter(replace(zone_set, shapes=lines), ())
        drawn = zip(outlines(counter, size), lines, strict=True)
        self._lines = [outline._replace(text=line.name) for outline, line in drawn]
        for crossing in crossings:
            place = crossing["place"]
            if place not in self.places:
                raise UsageError(f'{zones}: has no line "{place}"; use --zones as when counting')
            if crossing["x"] > size[0] or crossing["y"] > size[1]:
                raise UsageError(f"{video}: smaller than the counted video; give that one")
        self.show(crossings[-1]["time_s"] + np.zeros(1))  # raises if the video is too short

    def show_around(self, crossing: Crossing) -> dict[str, Any]:
        """Return a crossing with pictures of a quarter of the frame, mostly above the crossing."""
        width, height = self._size
        left = int(min(max(crossing["x"] - width / 4, 0), width / 2))
        top = int(min(max(crossing["y"] - height / 3, 0), height / 2))
        part = slice(top, top + (height + 1) // 2), slice(left, left + (width + 1) // 2)
        pictures = self.show(crossing["time_s"] + AROUND_S, part, crossing)
        return {**crossing, "pictures": pictures}

    def show(
        self, times: NDArray[np.float64], part: Any = ..., marked: Crossing | None = None
    ) -> list[str]:
        """Return frames at these times as JPEG data URLs, with a ring where ``marked`` crossed."""
        start_s = Fraction(times[0] - ROUNDED_S) - self._begins_s
        reading = replace(self._reading, start_s=max(start_s, Fraction(0)))
        (width, height), unit = self._size, max(1, self._size[0] // 400)
        size = ACROSS, max(1, ACROSS * height // width)
        urls, missing = [], times - ROUNDED_S
        with suppress(SourceError), reading.open(self._video) as source:
            for frame in source:
                if frame.time_s < missing[0]:
                    continue
                image = frame.image.copy()
                draw_outlines(image, self._lines, unit, unit / 2)
                if marked is not None and abs(frame.time_s - marked["time_s"]) < ROUNDED_S:
                    middle = round(marked["x"]), round(marked["y"])
                    cv2.circle(image, middle, 6 * unit, RING, unit)
                small = cv2.resize(image[part], size)
                jpeg = base64.b64encode(cv2.imencode(".jpg", small, QUALITY)[1].tobytes())
                urls.append(f"data:image/jpeg;base64,{jpeg.decode()}")
                missing = missing[missing > frame.time_s]
                if not len(missing):
                    break
        if not urls:
            raise SourceError(f"{self._video}: ends before {times[0]:.1f} s; give the whole video")
        return urls
