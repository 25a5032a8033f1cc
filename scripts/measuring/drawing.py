"""The cost of drawing boxes, labels and trails: in this version, an older one, and supervision."""

from __future__ import annotations

import json
import pickle
import sys
from functools import partial
from pathlib import Path

import click

from measuring import rounds as rounds_of
from measuring.clips import street_clip
from measuring.environments import CACHE, MissingError, checkout, environment
from measuring.rounds import ROOT, Row

COMMIT = "3cb269d"  # the last commit before the work on drawing
JOB = Path(__file__).with_name("drawing_job.py")
FRAMES, DRAWN = 160, 120  # only the last 120 of 160 frames are drawn: their trails are complete
FIELDS = ("boxes", "scores", "class_ids", "names", "track_ids", "trails")


def objects_file(clip: Path) -> Path:
    """Return a cached pickle file with the objects of the clip's last pictures, their tracks and
    trails."""
    path = CACHE / f"{clip.stem}-objects.pickle"
    if not path.is_file():
        from detector.core.api import Detector
        from detector.tracks.trails import Trails

        trails, objects = Trails(2.0), []
        with Detector("street", track="bytetrack") as detector:
            for frame, detections in detector.stream(str(clip)):
                drawn = trails.draw(detections, frame.time_s)
                objects.append({name: getattr(drawn, name) for name in FIELDS})
        path.write_bytes(pickle.dumps(objects[-DRAWN:]))
    return path


@click.command()
@click.option("--commit", default=COMMIT, help="The commit to compare with.")
@click.option("--rounds", default=5)
def drawing(commit: str, rounds: int) -> None:
    """Measure the CPU milliseconds per frame of annotating a 1080p clip: by this version ("now"),
    by that of another commit, and by supervision's annotators.

    110 frames of a street with about 20 objects are timed, after 10 warm-up frames. In the table,
    "planes" are pictures in YUV 4:2:0, which encoders take, and "bgr" are pictures in BGR. Labels
    show class and score; if trails are drawn, labels also show ids.
    """
    rounds_of.say_machine()
    clip = street_clip(1080, FRAMES)
    objects = objects_file(clip)

    def cost(who: str, python: str | Path = sys.executable, root: Path = ROOT) -> Row:
        completed = rounds_of.run(
            [python, JOB, who, clip, objects], environment={"PYTHONPATH": str(root)}
        )
        row: Row = json.loads(completed.stdout)
        return row

    variants = {}
    for pixels in ("planes", "bgr"):
        variants[f"now, {pixels}"] = partial(cost, pixels)
        variants[f"{commit}, {pixels}"] = partial(cost, pixels, root=checkout(ROOT, commit))
    try:
        python = environment("supervision", ["supervision", "opencv-python-headless"])
        variants["supervision, bgr"] = partial(cost, "supervision", python)
    except MissingError as error:
        click.echo(f"supervision: skipped: {error}")
    rows_by_name = rounds_of.interleave(variants, rounds, warm_up=0)
    keys = list(next(iter(rows_by_name.values()))[0])
    table = [
        [name, *(rounds_of.spread([row[key] for row in rows]) for key in keys)]
        for name, rows in rows_by_name.items()
    ]
    click.echo("\n" + rounds_of.markdown(["CPU, ms per frame", *keys], table))
