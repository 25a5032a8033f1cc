"""Damage: to bytes, to text, and to documents (trees of dicts and lists).

Every function takes its random numbers from the caller, so that a seed gives the same damage again.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

# Numbers at which programs break: the limits of their types, and the values next to them.
NUMBERS = (
    0, 1, 2, 3, 7, 16, 127, 128, 255, 256, 32767, 32768, 65500, 65535, 65536, 10**6, 2**24,
    2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1, 10**25, -1, -2, -128,
    -32768, -(2**31), -(2**63),
)  # fmt: skip
WORDS = (
    "", "0", "-0", "1e9", "1e400", "nan", "inf", "-inf", "0x10", "1_000", "1.5", ".5", "true",
    "null", "~", "None", "[]", "{}", "''", "\\", "%s", "%n", "{0}", "../..", "\t", "a b",
    "\u2028", "\ufeff", "ä", "١", "😀", "\x00", "\x1b[2J", "A" * 300, "9" * 400,
)  # fmt: skip
DEEP = 3000  # levels of nesting: more than Python's stack of calls holds
MARK = "\x00deep\x00"


def damage(random: Random, data: bytes, others: Sequence[bytes] = ()) -> bytes:
    """Change the bytes once or a few times, perhaps with pieces from ``others``, whole files."""
    changed = bytearray(data)
    if random.random() < 0.15:
        return bytes(_truncate(random, changed))
    for _ in range(min(64, int(random.expovariate(0.4)) + 1)):
        change = random.choice(_CHANGES)
        changed = change(random, changed)
        if others and random.random() < 0.05:
            changed = _splice(random, changed, random.choice(others))
    return bytes(changed)


def _place(random: Random, data: bytearray, width: int = 1) -> int:
    """A place in the data. Half of them lie in the first 256 bytes, where headers are."""
    last = max(0, len(data) - width)
    return random.randint(0, min(last, 256) if random.random() < 0.5 else last)


def _flip(random: Random, data: bytearray) -> bytearray:
    if data:
        data[_place(random, data)] ^= 1 << random.randrange(8)
    return data


def _set(random: Random, data: bytearray) -> bytearray:
    if data:
        data[_place(random, data)] = random.choice((0, 1, 0x7F, 0x80, 0xFF, random.randrange(256)))
    return data


def _number(random: Random, data: bytearray) -> bytearray:
    width = random.choice((2, 4, 4, 8))
    if len(data) >= width:
        at = _place(random, data, width)
        number = random.choice(NUMBERS) % (1 << 8 * width)
        data[at : at + width] = number.to_bytes(width, random.choice(("big", "little")))
    return data


def _add(random: Random, data: bytearray) -> bytearray:
    """A field becomes a little larger or smaller: off by one."""
    width = random.choice((1, 2, 4))
    if len(data) >= width:
        at, order = _place(random, data, width), random.choice(("big", "little"))
        value = int.from_bytes(data[at : at + width], order) + random.choice((-2, -1, 1, 2, 16))
        data[at : at + width] = (value % (1 << 8 * width)).to_bytes(width, order)
    return data


def _cut(random: Random, data: bytearray) -> bytearray:
    at = _place(random, data)
    del data[at : at + random.choice((1, 2, 4, 16, 200))]
    return data


def _repeat(random: Random, data: bytearray) -> bytearray:
    at = _place(random, data)
    piece = data[at : at + random.choice((1, 4, 16, 200))]
    data[at:at] = piece * random.choice((1, 2, 50))
    return data


def _zero(random: Random, data: bytearray) -> bytearray:
    at = _place(random, data)
    count = len(data[at : at + random.choice((8, 64, 1000))])
    data[at : at + count] = bytes([random.choice((0, 0xFF))]) * count
    return data


def _swap(random: Random, data: bytearray) -> bytearray:
    width = random.choice((4, 16, 64))
    if len(data) > 2 * width:
        a, b = _place(random, data, width), _place(random, data, width)
        data[a : a + width], data[b : b + width] = data[b : b + width], data[a : a + width]
    return data


def _truncate(random: Random, data: bytearray) -> bytearray:
    return data[: random.choice((0, 1, 4, random.randint(0, len(data)), max(0, len(data) - 1)))]


def _splice(random: Random, data: bytearray, other: bytes) -> bytearray:
    at = _place(random, data)
    start = random.randint(0, max(0, len(other) - 1))
    piece = other[start : start + random.choice((16, 200, 2000))]
    data[at : at + (len(piece) if random.random() < 0.5 else 0)] = piece
    return data


_CHANGES: tuple[Callable[[Random, bytearray], bytearray], ...] = (
    _flip, _flip, _set, _set, _number, _number, _add, _cut, _repeat, _zero, _swap,
)  # fmt: skip


def damage_text(random: Random, text: str, words: Sequence[str] = ()) -> bytes:
    """Changes of lines and words, so that much of the grammar stays. ``words``: of the format."""
    lines = text.splitlines()
    known = [*WORDS, *map(str, NUMBERS), *words]
    for _ in range(min(12, int(random.expovariate(0.6)) + 1)):
        if not lines:
            break
        at, what = random.randrange(len(lines)), random.randrange(8)
        if what == 0:
            del lines[at]
        elif what == 1:
            lines.insert(at, lines[at])
        elif what == 2:
            other = random.randrange(len(lines))
            lines[at], lines[other] = lines[other], lines[at]
        elif what == 3:
            lines.insert(at, random.choice(known))
        else:
            lines[at] = _change_word(random, lines[at], known)
    content = random.choice(("\n", "\n", "\n", "\r\n", "\r")).join(lines) + "\n"
    data = content.encode("utf-8", "surrogatepass")
    kind = random.random()
    if kind < 0.1:
        return damage(random, data)
    if kind < 0.15:
        return random.choice(
            (b"\xef\xbb\xbf" + data, content.encode("utf-16"), data + b"\xff\xfe", data[:-1])
        )
    return data


def _change_word(random: Random, line: str, known: Sequence[str]) -> str:
    """One word or number of a line becomes another; the signs between them stay."""
    pieces: list[str] = []
    for sign in line:
        if pieces and (sign.isalnum() or sign in "._-+") == (
            pieces[-1][-1].isalnum() or pieces[-1][-1] in "._-+"
        ):
            pieces[-1] += sign
        else:
            pieces.append(sign)
    if not pieces:
        return random.choice(known)
    at = random.randrange(len(pieces))
    pieces[at] = random.choice((random.choice(known), pieces[at] * 2, ""))
    return "".join(pieces)


VALUES: tuple[Any, ...] = (
    None, True, False, "", "x", "0", [], {}, [[]], [None], {"": None}, 0.5, -0.0, 1e308, -1e308,
    float("nan"), float("inf"), [0] * 9, "A" * 5000, "\ud800", "\x00", *NUMBERS,
)  # fmt: skip


def damage_tree(random: Random, document: Any) -> Any:
    """Copy the document, with some values removed or changed in type or size."""
    changed = copy.deepcopy(document)
    for _ in range(min(8, int(random.expovariate(0.7)) + 1)):
        changed = _change_tree(random, changed)
    return changed


def _change_tree(random: Random, tree: Any) -> Any:
    places = list(_places(tree))
    if not places:
        return random.choice(VALUES)
    inside, key = random.choice(places)
    what = random.randrange(10)
    if what == 0:
        del inside[key]
    elif what == 1 and isinstance(inside, dict):
        inside[random.choice(WORDS)] = inside.pop(key)
    elif what == 1:
        inside.insert(key, copy.deepcopy(inside[key]))
    elif what == 2:
        other, other_key = random.choice(places)
        inside[key] = copy.deepcopy(other[other_key]) if _is_there(other, other_key) else None
    elif what == 3:
        inside[key] = [inside[key]]
    elif what == 4:
        inside[key] = str(inside[key])
    elif what == 5 and isinstance(inside[key], (int, float)):
        inside[key] = random.choice((-inside[key], inside[key] + 1, inside[key] * 1e6))
    elif what == 6 and random.random() < 0.2:
        inside[key] = MARK
    else:
        inside[key] = copy.deepcopy(random.choice(VALUES))
    return tree


def _is_there(inside: Any, key: Any) -> bool:
    return key in inside if isinstance(inside, dict) else key < len(inside)


def _places(tree: Any) -> Any:
    waiting = [tree]
    while waiting:
        inside = waiting.pop()
        if isinstance(inside, dict):
            keys: Any = list(inside)
        elif isinstance(inside, list):
            keys = range(min(len(inside), 50))
        else:
            continue
        for key in keys:
            yield inside, key
            waiting.append(inside[key])


def damage_json(random: Random, document: Any) -> bytes:
    text = json.dumps(damage_tree(random, document), ensure_ascii=random.random() < 0.8)
    mark = json.dumps(MARK)
    if mark in text:
        opened, closed = random.choice((("[", "]"), ('{"a":', "}")))
        text = text.replace(mark, opened * DEEP + "0" + closed * DEEP)
    data = text.encode("utf-8", "surrogatepass")
    return damage(random, data) if random.random() < 0.1 else data
