"""The cost of drawing boxes, labels and trails: ours, an older version of ours, and supervision."""

from __future__ import annotations

import json
import pickle
import sys
from functools import partial
from pathlib import Path

import click

from measuring import rounds as rounds_of
from measuring.clips import made
from measuring.environments import CACHE, MissingError, checkout, environment
from measuring.rounds import ROOT, Row

COMMIT = "3cb269d"  # the last commit before the work on drawing
JOB = Path(__file__).with_name("drawing_job.py")
FRAMES, DRAWN = 160, 120  # DRAWN: the last ones; trails are complete after two seconds
KEPT = ("boxes", "scores", "class_ids", "names", "track_ids", "trails")


def objects_of(clip: Path) -> Path:
    """Return the objects of the clip's last pictures, with tracks and trails; cached."""
    path = CACHE / f"{clip.stem}-objects.pickle"
    if not path.is_file():
        from detector.core.api import Detector
        from detector.tracks.trails import Trails

        trails, found = Trails(2.0), []
        with Detector("street", track="bytetrack") as detector:
            for frame, seen in detector.stream(str(clip)):
                one = trails.draw(seen, frame.time_s)
                found.append({name: getattr(one, name) for name in KEPT})
        path.write_bytes(pickle.dumps(found[-DRAWN:]))
    return path


@click.command()
@click.option("--commit", default=COMMIT, show_default=True, help="The commit to compare with.")
@click.option("--rounds", default=5, show_default=True)
def drawing(commit: str, rounds: int) -> None:
    """Measure CPU milliseconds per frame of annotating a 1080p street, 110 frames with about 20
    objects: now, at another commit, and with supervision's annotators.

    Planes are YUV 4:2:0, as encoders take them. Labels have class and score; with trails, ids too.
    """
    rounds_of.say_machine()
    clip = made(1080, FRAMES)
    objects = objects_of(clip)

    def cost(who: str, python: str | Path = sys.executable, root: Path = ROOT) -> Row:
        done = rounds_of.run([python, JOB, who, clip, objects], around={"PYTHONPATH": str(root)})
        row: Row = json.loads(done.stdout)
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
    found = rounds_of.interleave(variants, rounds, warm_up=0)
    keys = list(next(iter(found.values()))[0])
    table = [
        [name, *(rounds_of.spread([row[key] for row in rows]) for key in keys)]
        for name, rows in found.items()
    ]
    click.echo("\n" + rounds_of.markdown(["CPU, ms a frame", *keys], table))
