"""Poisoned engine files: whatever they contain, the rows must come from the real model.

Every case starts with the folder that a run has filled with engine files, and with the key that
authenticates these files. An attacker who does not know the key then changes something.
"""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from tests.attacks.case import Case, Kind, Limits, Link, Pipe
from tests.attacks.inputs import CFG, content, tree
from tests.attacks.mutate import damage, damage_json

FOLDER, KEY, ROWS = "engines", "xdg/detect-video/cache.key", "rows.jsonl"
RUN = (
    *("in.mp4", "--model", "m.cfg", "--engine", "ort", "--threads", "1", "--frames", "4"),
    *("--conf", "0.01", "--no-video", "-o", ROWS, "--engines-dir", FOLDER),
)
NOBODY = 65534
UNPROVED = "lacks proof that this account wrote it"


@cache
def filled() -> Mapping[str, bytes]:
    """Return the model, the folder of engine files, the key and the rows of a normal run."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "in.mp4").write_bytes(content("in.mp4"))
        (folder / "m.cfg").write_text(CFG)
        (folder / "m.weights").write_bytes(content("small.weights"))
        environment = {"XDG_CACHE_HOME": f"{place}/xdg", "DETECT_VIDEO_SELF_TIMING": "0"}
        done = subprocess.run(
            [sys.executable, "-m", "detector", *RUN, "--run-dir", "session"],
            cwd=folder, env={**os.environ, **environment}, capture_output=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"no folder to poison could be made: {done.stderr.decode()}")
        files = tree(folder)
    return {name: data for name, data in files.items() if not name.startswith("session/")}


@dataclass
class Harm:
    """A folder to poison. ``message``: words that the run must print."""

    random: Random
    files: dict[str, Any]
    graph: str
    manifest: str
    modes: dict[str, int] = field(default_factory=dict)
    owners: dict[str, int] = field(default_factory=dict)
    message: str = ""

    def read_manifest(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.files[self.manifest])
        return found

    def change_manifest(self, **changed: Any) -> None:
        self.files[self.manifest] = json.dumps({**self.read_manifest(), **changed}).encode()

    def poison(self) -> str:
        """Give the graph other weights; return its new digest."""
        import onnx

        model = onnx.load_from_string(self.files[self.graph])
        for tensor in model.graph.initializer:
            if tensor.data_type == onnx.TensorProto.FLOAT and self.random.random() < 0.9:
                tensor.raw_data = bytes(len(tensor.raw_data))
        self.files[self.graph] = model.SerializeToString()
        return hashlib.sha256(self.files[self.graph]).hexdigest()


def tampered_graph(harm: Harm) -> None:
    harm.poison()
    harm.message = "its content does not match its manifest"


def tampered_manifest(harm: Harm) -> None:
    harm.files[harm.manifest] = damage_json(harm.random, harm.read_manifest())


def tampered_both(harm: Harm) -> None:
    """Put the poisoned graph's digest into the manifest, with the old, a forged or no proof."""
    harm.change_manifest(file_sha256=harm.poison())
    change = harm.random.randrange(4)
    if change == 0:
        harm.files[harm.manifest] = json.dumps(
            {name: value for name, value in harm.read_manifest().items() if name != "proof"}
        ).encode()
    elif change == 1:
        harm.change_manifest(
            proof=harm.random.choice(["0" * 64, "", 5, None, [], "\u00e9", "f" * 10**6])
        )
    elif change == 2:
        harm.change_manifest(proof=hashlib.sha256(harm.files[harm.manifest]).hexdigest())
    harm.message = UNPROVED


def another_name(harm: Harm) -> None:
    """Store the poisoned graph under a name with its own digest, and remove the real graph."""
    digest = harm.poison()
    harm.change_manifest(file_sha256=digest)
    stem = harm.graph.removesuffix(".onnx")[:-12] + digest[:12]
    for old, suffix in ((harm.graph, ".onnx"), (harm.manifest, ".json")):
        harm.files[stem + suffix] = harm.files.pop(old)
    harm.message = UNPROVED


def swapped_names(harm: Harm) -> None:
    """Exchange the names of this model's graph and manifest with those of another model."""
    import onnx

    model = onnx.load_from_string(harm.files[harm.graph])
    model.producer_name = "another"
    other = model.SerializeToString()
    manifest = {**harm.read_manifest(), "file_sha256": hashlib.sha256(other).hexdigest()}
    stem = f"{FOLDER}/other-64x64-b1-{manifest['file_sha256'][:12]}"
    harm.files[f"{stem}.onnx"], harm.files[f"{stem}.json"] = (
        harm.files[harm.graph],
        harm.files[harm.manifest],
    )
    harm.files[harm.graph], harm.files[harm.manifest] = other, json.dumps(manifest).encode()
    harm.message = UNPROVED


def links(harm: Harm) -> None:
    """Replace a file by a link to a poisoned graph, to nothing, or to a file of the user."""
    victim = harm.random.choice([harm.graph, harm.manifest])
    harm.poison()
    harm.files["elsewhere.bin"] = harm.files[harm.graph]
    to = harm.random.choice(["../elsewhere.bin", "nowhere", "../letter.txt", "../../home/.bashrc"])
    harm.files[victim] = Link(to)
    harm.message = "not used"


def pipes(harm: Harm) -> None:
    harm.files[harm.random.choice([harm.graph, harm.manifest])] = Pipe()
    harm.message = "not used"


def truncated(harm: Harm) -> None:
    name = harm.random.choice([harm.graph, harm.manifest])
    harm.files[name] = harm.files[name][: harm.random.randrange(len(harm.files[name]))]
    harm.message = "not used"


def damaged(harm: Harm) -> None:
    for name in (harm.graph, harm.manifest):
        if harm.random.random() < 0.7:
            harm.files[name] = damage(harm.random, harm.files[name])


def open_files(harm: Harm) -> None:
    harm.modes[harm.random.choice([harm.graph, harm.manifest])] = harm.random.choice(
        (0o666, 0o602, 0o646)
    )


def open_folder(harm: Harm) -> None:
    harm.change_manifest(file_sha256=harm.poison())
    harm.modes[FOLDER] = harm.random.choice((0o777, 0o1777, 0o703))
    harm.message = "everyone may write there"


def folder_of_another(harm: Harm) -> None:
    harm.change_manifest(file_sha256=harm.poison())
    harm.owners[FOLDER] = NOBODY
    harm.message = "it belongs to the account"


def file_of_another(harm: Harm) -> None:
    harm.change_manifest(file_sha256=harm.poison())
    harm.owners[harm.random.choice([harm.graph, harm.manifest])] = NOBODY
    harm.message = "not used"


def spoilt_key(harm: Harm) -> None:
    """Remove, damage, expose or link the key, so that no file can be authenticated."""
    harm.change_manifest(file_sha256=harm.poison())
    change = harm.random.randrange(4)
    if change == 0:
        del harm.files[KEY], harm.modes[KEY]
    elif change == 1:
        harm.files[KEY] = harm.random.randbytes(harm.random.choice((0, 31, 32, 33, 4096)))
    elif change == 2:
        harm.modes[KEY] = 0o644
    else:
        harm.files["known"], harm.files[KEY] = harm.files[KEY], Link("../../known")
        del harm.modes[KEY]
    harm.message = UNPROVED


def measurements(harm: Harm) -> None:
    tuned = {"kind": "tune", "rows": [{"options": {"conf": 0.99}}]}
    forged = {"schema": 2, "measurements": [tuned]}
    proof = harm.random.choice([{}, {"proof": harm.read_manifest()["proof"]}])
    harm.files[f"{FOLDER}/measured.json"] = json.dumps({**forged, **proof}).encode()
    harm.message = f"measured.json {UNPROVED}"


HARMS: tuple[Callable[[Harm], None], ...] = (
    *(tampered_graph, tampered_manifest, tampered_both, another_name, swapped_names, links, pipes),
    *(truncated, damaged, open_files, open_folder, spoilt_key, measurements),
)
OF_ROOT: tuple[Callable[[Harm], None], ...] = (folder_of_another, file_of_another)


def make(random: Random) -> Case:
    files = dict(filled())
    rows = files.pop(ROWS)
    [graph] = [name for name in files if name.endswith(".onnx")]
    harm = Harm(random, files, graph, graph.replace(".onnx", ".json"), {KEY: 0o600})
    harms = HARMS + OF_ROOT if os.geteuid() == 0 else HARMS
    harm_kind = random.choice(harms)
    harm_kind(harm)
    changing = {name for name in files if name.startswith((f"{FOLDER}/", "xdg/"))}
    return Case(
        files,
        RUN,
        frozenset({0}),
        note=harm_kind.__name__,
        env={"XDG_CACHE_HOME": "{root}/work/xdg"},
        limits=Limits(wall_s=120, cpu_s=60, memory_mb=3000, address_space_mb=None),
        fresh=True,
        may_change=frozenset(changing),
        modes=harm.modes,
        owners=harm.owners,
        digests={ROWS: hashlib.sha256(rows).hexdigest()},
        says=harm.message,
        again=frozenset({0}),
    )


KIND = Kind("cache", make, share=0.4, first=60)
