"""Poisoned built files: whatever they hold, the rows must be the real model's.

Every case begins with a folder that a run has filled, and the key that proves it. Then an attacker
who does not know the key has changed something.
"""

from __future__ import annotations

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
    """The model, the engines' folder, the key and the rows of an undisturbed run."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "in.mp4").write_bytes(content("in.mp4"))
        (folder / "m.cfg").write_text(CFG)
        (folder / "m.weights").write_bytes(content("small.weights"))
        surroundings = {"XDG_CACHE_HOME": f"{place}/xdg", "DETECT_VIDEO_SELF_TIMING": "0"}
        done = subprocess.run(
            [sys.executable, "-m", "detector", *RUN, "--run-dir", "session"],
            cwd=folder, env={**os.environ, **surroundings}, capture_output=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"no folder to poison could be made: {done.stderr.decode()}")
        files = tree(folder)
    return {name: data for name, data in files.items() if not name.startswith("session/")}


@dataclass
class Harm:
    """A folder being poisoned. ``says``: words that the run's line must contain."""

    random: Random
    files: dict[str, Any]
    graph: str
    manifest: str
    modes: dict[str, int] = field(default_factory=dict)
    owners: dict[str, int] = field(default_factory=dict)
    says: str = ""

    def told(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.files[self.manifest])
        return found

    def tell(self, **changed: Any) -> None:
        self.files[self.manifest] = json.dumps({**self.told(), **changed}).encode()

    def poison(self) -> str:
        """Give the graph other weights; return its digest."""
        import onnx

        model = onnx.load_from_string(self.files[self.graph])
        for tensor in model.graph.initializer:
            if tensor.data_type == onnx.TensorProto.FLOAT and self.random.random() < 0.9:
                tensor.raw_data = bytes(len(tensor.raw_data))
        self.files[self.graph] = model.SerializeToString()
        return hashlib.sha256(self.files[self.graph]).hexdigest()


def tampered_graph(harm: Harm) -> None:
    harm.poison()
    harm.says = "its content does not match its manifest"


def tampered_manifest(harm: Harm) -> None:
    harm.files[harm.manifest] = damage_json(harm.random, harm.told())


def tampered_both(harm: Harm) -> None:
    """The manifest has the digest of the poisoned graph, with the old proof, none or a made one."""
    harm.tell(file_sha256=harm.poison())
    what = harm.random.randrange(4)
    if what == 0:
        harm.files[harm.manifest] = json.dumps(
            {name: value for name, value in harm.told().items() if name != "proof"}
        ).encode()
    elif what == 1:
        harm.tell(proof=harm.random.choice(["0" * 64, "", 5, None, [], "\u00e9", "f" * 10**6]))
    elif what == 2:
        harm.tell(proof=hashlib.sha256(harm.files[harm.manifest]).hexdigest())
    harm.says = UNPROVED


def another_name(harm: Harm) -> None:
    """The poisoned graph under a name with its own digest; the real one is gone."""
    digest = harm.poison()
    harm.tell(file_sha256=digest)
    stem = harm.graph.removesuffix(".onnx")[:-12] + digest[:12]
    for old, suffix in ((harm.graph, ".onnx"), (harm.manifest, ".json")):
        harm.files[stem + suffix] = harm.files.pop(old)
    harm.says = UNPROVED


def swapped_names(harm: Harm) -> None:
    """Graph and manifest of another model under this one's name; that one may be whole."""
    import onnx

    model = onnx.load_from_string(harm.files[harm.graph])
    model.producer_name = "another"
    other = model.SerializeToString()
    told = {**harm.told(), "file_sha256": hashlib.sha256(other).hexdigest()}
    beside = f"{FOLDER}/other-64x64-b1-{told['file_sha256'][:12]}"
    harm.files[f"{beside}.onnx"], harm.files[f"{beside}.json"] = (
        harm.files[harm.graph],
        harm.files[harm.manifest],
    )
    harm.files[harm.graph], harm.files[harm.manifest] = other, json.dumps(told).encode()
    harm.says = UNPROVED


def links(harm: Harm) -> None:
    """To a poisoned graph elsewhere, to nowhere, or to a file of the user's."""
    victim = harm.random.choice([harm.graph, harm.manifest])
    harm.poison()
    harm.files["elsewhere.bin"] = harm.files[harm.graph]
    to = harm.random.choice(["../elsewhere.bin", "nowhere", "../letter.txt", "../../home/.bashrc"])
    harm.files[victim] = Link(to)
    harm.says = "not used"


def pipes(harm: Harm) -> None:
    harm.files[harm.random.choice([harm.graph, harm.manifest])] = Pipe()
    harm.says = "not used"


def truncated(harm: Harm) -> None:
    name = harm.random.choice([harm.graph, harm.manifest])
    harm.files[name] = harm.files[name][: harm.random.randrange(len(harm.files[name]))]
    harm.says = "not used"


def damaged(harm: Harm) -> None:
    for name in (harm.graph, harm.manifest):
        if harm.random.random() < 0.7:
            harm.files[name] = damage(harm.random, harm.files[name])


def open_files(harm: Harm) -> None:
    harm.modes[harm.random.choice([harm.graph, harm.manifest])] = harm.random.choice(
        (0o666, 0o602, 0o646)
    )


def open_folder(harm: Harm) -> None:
    harm.tell(file_sha256=harm.poison())
    harm.modes[FOLDER] = harm.random.choice((0o777, 0o1777, 0o703))
    harm.says = "everyone may write there"


def folder_of_another(harm: Harm) -> None:
    harm.tell(file_sha256=harm.poison())
    harm.owners[FOLDER] = NOBODY
    harm.says = "it belongs to the account"


def file_of_another(harm: Harm) -> None:
    harm.tell(file_sha256=harm.poison())
    harm.owners[harm.random.choice([harm.graph, harm.manifest])] = NOBODY
    harm.says = "not used"


def spoilt_key(harm: Harm) -> None:
    """Remove, damage, expose or link the key: afterwards the folder proves nothing."""
    harm.tell(file_sha256=harm.poison())
    what = harm.random.randrange(4)
    if what == 0:
        del harm.files[KEY], harm.modes[KEY]
    elif what == 1:
        harm.files[KEY] = harm.random.randbytes(harm.random.choice((0, 31, 32, 33, 4096)))
    elif what == 2:
        harm.modes[KEY] = 0o644
    else:
        harm.files["known"], harm.files[KEY] = harm.files[KEY], Link("../../known")
        del harm.modes[KEY]
    harm.says = UNPROVED


def measurements(harm: Harm) -> None:
    tuned = {"kind": "tune", "rows": [{"options": {"conf": 0.99}}]}
    forged = {"schema": 2, "measurements": [tuned]}
    proof = harm.random.choice([{}, {"proof": harm.told()["proof"]}])
    harm.files[f"{FOLDER}/measured.json"] = json.dumps({**forged, **proof}).encode()
    harm.says = f"measured.json {UNPROVED}"


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
    how = random.choice(harms)
    how(harm)
    changing = {name for name in files if name.startswith((f"{FOLDER}/", "xdg/"))}
    return Case(
        files,
        RUN,
        frozenset({0}),
        note=how.__name__,
        env={"XDG_CACHE_HOME": "{root}/work/xdg"},
        limits=Limits(wall_s=120, cpu_s=60, memory_mb=3000, address_space_mb=None),
        fresh=True,
        may_change=frozenset(changing),
        modes=harm.modes,
        owners=harm.owners,
        digests={ROWS: hashlib.sha256(rows).hexdigest()},
        says=harm.says,
        again=frozenset({0}),
    )


KIND = Kind("cache", make, share=0.4, first=60)
