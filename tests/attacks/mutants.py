"""Read damaged videos with our reader and with ffmpeg; compare frames and reports of damage.

    python -m tests.attacks.mutants            # the figures of docs/reading.md, from 300 mutants
    python -m tests.attacks.mutants --list     # also the mutants that we read differently

A mutant is a damaged copy of one of ten small videos. Each run makes the same random damage. The
reference is ``ffmpeg -v error``: the frames that it decodes, and its lines on standard error.
"""

import argparse
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from detector.core import sources
from detector.core.errors import EXIT_DAMAGED, EXIT_DONE, EXIT_SOURCE, SourceError
from tests.sources.oddities import ffmpeg

FRAMES = 20
PICTURES = ["-f", "lavfi", "-i", f"testsrc2=size=64x48:rate=25:duration={FRAMES / 25}"]
SOUND = ["-f", "lavfi", "-i", f"sine=duration={FRAMES / 25}", "-c:a", "aac", "-b:a", "32k"]
H264 = ["-c:v", "libx264", "-g", "10", "-bf", "2", "-threads", "1"]
SEEDS = {
    "h264.mp4": [*SOUND, *H264, "-movflags", "+faststart"],
    "hevc.mkv": ["-c:v", "libx265", "-x265-params", "log-level=0:keyint=10:bframes=2:pools=1"],
    "vp9.webm": ["-c:v", "libvpx-vp9", "-g", "10", "-threads", "1"],
    "mpeg4.avi": ["-c:v", "mpeg4", "-g", "10", "-threads", "1"],
    "h264.flv": [*SOUND, *H264],
    "h264.ts": [*SOUND, *H264],
    "fragmented.mov": [*H264, "-movflags", "+frag_keyframe+empty_moov"],
    "still.gif": ["-pix_fmt", "rgb8"],
    "plain.y4m": [],
    "raw.h264": H264,
}
FROM_BYTE = 16  # the first 16 bytes identify the format, and stay intact


def flip_bits(data: bytearray, chance: random.Random) -> None:
    for _ in range(chance.randint(1, 3)):
        data[chance.randrange(FROM_BYTE, len(data))] ^= 1 << chance.randrange(8)


def overwrite(data: bytearray, chance: random.Random) -> None:
    length = chance.randint(8, 64)
    at = chance.randrange(FROM_BYTE, len(data) - length)
    data[at : at + length] = chance.randbytes(length)


def blank(data: bytearray, chance: random.Random) -> None:
    length = chance.randint(64, 512)
    at = chance.randrange(FROM_BYTE, max(FROM_BYTE + 1, len(data) - length))
    data[at : at + length] = bytes(len(data[at : at + length]))


def cut_off(data: bytearray, chance: random.Random) -> None:
    del data[round(len(data) * chance.uniform(0.2, 0.99)) :]


def cut_out(data: bytearray, chance: random.Random) -> None:
    length = chance.randint(1, 512)
    at = chance.randrange(FROM_BYTE, max(FROM_BYTE + 1, len(data) - length))
    del data[at : at + length]


DAMAGES = (flip_bits, overwrite, blank, cut_off, cut_out)


@dataclass(frozen=True)
class Outcome:
    """The result of one mutant. ``exit``: the exit code that detect-video would give for it."""

    path: Path
    seed: str
    damage: str
    their_frames: int  # frames that ffmpeg decodes
    complaints: tuple[str, ...]  # ffmpeg's lines on stderr
    our_frames: int
    exit: int

    @property
    def verdicts(self) -> tuple[str, ...]:
        """Return how our reading differs from ffmpeg's; nothing if both agree."""
        damaged = self.exit != EXIT_DONE
        differences = {
            "fewer frames than ffmpeg": self.our_frames < self.their_frames,
            "more frames than ffmpeg": self.our_frames > self.their_frames,
            "ffmpeg complains, exit 0": bool(self.complaints) and not damaged,
            "frames lost, exit 0": self.our_frames < FRAMES and not damaged,
            "ffmpeg is silent, exit 7": not self.complaints and self.exit == EXIT_DAMAGED,
        }
        return tuple(name for name, applies in differences.items() if applies)


def make_seeds(folder: Path, names: list[str]) -> None:
    for name in names:
        pixels = [] if "-pix_fmt" in SEEDS[name] else ["-pix_fmt", "yuv420p"]
        # Matroska's muxer writes random numbers unless bitexact is set.
        ffmpeg(*PICTURES, *SEEDS[name], *pixels, "-fflags", "+bitexact", folder / name)


def make_mutants(folder: Path, each: int, names: list[str]) -> Iterator[tuple[Path, str, str]]:
    for name in names:
        seed_data = (folder / name).read_bytes()
        for number in range(each):
            chance = random.Random(f"{name} {number}")
            damage = DAMAGES[number % len(DAMAGES)]
            data = bytearray(seed_data)
            damage(data, chance)
            path = folder / f"{number:03}-{name}"
            path.write_bytes(data)
            yield path, name, damage.__name__


def read_by_ffmpeg(path: Path) -> tuple[int, tuple[str, ...]]:
    # Use one thread: with several threads, ffmpeg's MPEG-4 decoder complains only in some runs.
    command = ["ffmpeg", "-v", "error", "-nostdin", "-threads", "1", "-i", path, "-map", "0:v:0"]
    command += ["-fps_mode", "passthrough", "-f", "framecrc", "-"]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    frames = sum(not line.startswith("#") for line in done.stdout.splitlines())
    return frames, tuple(done.stderr.splitlines())


def read_by_us(path: Path, decoder: str) -> tuple[int, int]:
    try:
        with sources.open(str(path), decoder=decoder) as source:
            frames = sum(1 for _ in source)
    except SourceError:
        return 0, EXIT_SOURCE
    return frames, EXIT_DAMAGED if source.damaged else EXIT_DONE


def attack(
    folder: Path,
    each: int = 30,
    decoders: Sequence[str] = ("auto",),
    names: list[str] | None = None,
) -> list[Outcome]:
    """Make the mutants in ``folder``; read each with ffmpeg and with each of our decoders."""
    names = names or list(SEEDS)
    make_seeds(folder, names)
    outcomes = []
    for path, seed, damage in make_mutants(folder, each, names):
        their_frames, complaints = read_by_ffmpeg(path)
        for decoder in decoders:
            our_frames, exit = read_by_us(path, decoder)
            outcomes.append(Outcome(path, seed, damage, their_frames, complaints, our_frames, exit))
    return outcomes


def table(outcomes: list[Outcome]) -> str:
    kinds = sorted({verdict for outcome in outcomes for verdict in outcome.verdicts})
    lines = [
        "| seed | mutants | " + " | ".join(["same", *kinds]) + " |",
        "|---|" + "---|" * (len(kinds) + 2),
    ]
    for seed in dict.fromkeys(outcome.seed for outcome in outcomes):
        own = [outcome for outcome in outcomes if outcome.seed == seed]
        counts = Counter(verdict for outcome in own for verdict in outcome.verdicts)
        same = sum(not outcome.verdicts for outcome in own)
        cells = [seed, len(own), same, *(counts[kind] for kind in kinds)]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", action="store_true", help="name each mutant that differs")
    parser.add_argument("--each", type=int, default=30, help="mutants of each seed [30]")
    parser.add_argument("--decoder", default="auto", help="our decoder: auto, av or opencv [auto]")
    parser.add_argument("--folder", type=Path, help="keep the files here")
    parser.add_argument("seeds", nargs="*", help=f"of {', '.join(SEEDS)} [all]")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        outcomes = attack(folder, arguments.each, [arguments.decoder], arguments.seeds)
    print(table(outcomes))
    if arguments.list:
        for one in outcomes:
            if one.verdicts:
                complaint = one.complaints[0].partition("] ")[2] if one.complaints else ""
                print(
                    f"{one.path.name} {one.damage}: {', '.join(one.verdicts)}; frames "
                    f"{one.their_frames} and {one.our_frames}, exit {one.exit}; "
                    f"{len(one.complaints)} {complaint}"
                )
    sys.exit(0)


if __name__ == "__main__":
    main()
