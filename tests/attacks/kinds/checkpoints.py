"""Damaged checkpoints: changed bytes of the zip, or a valid zip with changed entries."""

import io
import pickle
import zipfile
from functools import cache
from random import Random

from tests.attacks.case import Case, Kind
from tests.attacks.inputs import content
from tests.attacks.mutate import damage

CODES = frozenset({0, 2, 4})
OPCODES = [getattr(pickle, name) for name in pickle.__all__ if name.isupper()]
OPCODES = [code for code in OPCODES if isinstance(code, bytes) and len(code) == 1]
PIECES = (
    b"cposix\nsystem\n", b"c__builtin__\nset\n", b"ctorch\nFloatStorage\n",
    b"ctorch._utils\n_rebuild_tensor_v2\n", b"cmodels.yolo\nModel\n",
    b"ccollections\nOrderedDict\n", b"X\xff\xff\xff\x7f", b"\x8a\xff", b"G" + b"\x7f" * 8,
    b"K\x01\x85R", b"r\xff\xff\xff\x7f", b"j\xff\xff\xff\xff", b")R", b"}b", b"0", b"2",
    b"(lp0\n", b"I01\n", b"L99999999999L\n", b"]" * 2000, b"(" * 2000, b"\x85" * 2000,
)  # fmt: skip


@cache
def _entries(name: str) -> tuple[tuple[str, bytes], ...]:
    with zipfile.ZipFile(io.BytesIO(content(name))) as file:
        return tuple((entry.filename, file.read(entry)) for entry in file.infolist())


def make(random: Random) -> Case:
    name = random.choice(("state.pt", "whole.pt"))
    data = damage(random, content(name)) if random.random() < 0.4 else _rezipped(random, name)
    files = {"m.pt": data}
    argv = ["models", "show", "m.pt", "--size", "64", "--json"]
    if name == "state.pt" or random.random() < 0.2:
        files |= {"t.yaml": content("t.yaml")}
        argv = ["models", "show", "t.yaml", "--weights", "m.pt", "--size", "64", "--json"]
    return Case(files, tuple(argv), CODES)


def _rezipped(random: Random, name: str) -> bytes:
    """Return a valid zip with one damaged entry. An entry may also be removed, added or renamed."""
    entries = list(_entries(name))
    at = 0 if random.random() < 0.7 else random.randrange(len(entries))
    path, data = entries[at]
    entries[at] = (path, _damage_pickle(random, data) if at == 0 else damage(random, data))
    change = random.random()
    if change < 0.1:
        del entries[random.randrange(len(entries))]
    elif change < 0.2:
        entries.append(
            (random.choice(("../x", "archive/data.pkl", "/x", "archive/byteorder")), b"big")
        )
    elif change < 0.3:
        entries[-1] = (entries[-1][0] + random.choice(("/", "x", "\x00")), entries[-1][1])
    packed = io.BytesIO()
    kind = zipfile.ZIP_DEFLATED if random.random() < 0.05 else zipfile.ZIP_STORED
    with zipfile.ZipFile(packed, "w", kind) as file:
        for path, data in entries:
            file.NameToInfo.pop(path, None)  # avoids the warning about duplicate names
            file.writestr(zipfile.ZipInfo(path), data, kind)
    return packed.getvalue()


def _damage_pickle(random: Random, data: bytes) -> bytes:
    for _ in range(random.choice((1, 1, 2, 5))):
        at = random.randrange(len(data))
        piece = random.choice((*OPCODES, random.choice(PIECES)))
        data = data[:at] + piece + data[at + random.choice((0, 1, len(piece))) :]
    return damage(random, data) if random.random() < 0.3 else data


KIND = Kind("checkpoints", make, share=7)
