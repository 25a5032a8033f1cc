"""Random damage to bytes, text and documents (trees of dicts and lists).

Every function takes ``random`` from its caller, so that equal seeds give equal damage.
"""

import copy
import json
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

# Numbers at which programs break: the limits of integer types, and values next to them.
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
DEEP = 3000  # levels of nesting, beyond Python's recursion limit
MARK = "\x00deep\x00"


def damage(random: Random, data: bytes, others: Sequence[bytes] = ()) -> bytes:
    """Change the bytes once or a few times, perhaps with pieces of ``others`` (other files)."""
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
    """Return a position in the data: half of the time in the first 256 bytes, where headers are."""
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
    """Add a small number to a field."""
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
    """Change lines and words, which keeps most of the syntax. ``words``: words of the format."""
    lines = text.splitlines()
    known = [*WORDS, *map(str, NUMBERS), *words]
    for _ in range(min(12, int(random.expovariate(0.6)) + 1)):
        if not lines:
            break
        at, change = random.randrange(len(lines)), random.randrange(8)
        if change == 0:
            del lines[at]
        elif change == 1:
            lines.insert(at, lines[at])
        elif change == 2:
            other = random.randrange(len(lines))
            lines[at], lines[other] = lines[other], lines[at]
        elif change == 3:
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
    """Replace, double or remove one word of a line, or one run of characters between words."""
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
    5e-324, 10**18, 10**30, 10**300, [-1.5] * 1000, {"a": {"b": {"c": {}}}}, [[[[[[[[1]]]]]]]],
    ["a", 1], "=1+1", "[/bold]", "<script>alert(1)</script>", "two\nlines\u202e", "1e999",
    "\x1b[31mred\x1b]0;title\x07", "x" * 100_000, "0x" + "f" * 300, "9" * 6000, "a/" * 3000, ".",
    "..", "/", "../../../../etc/passwd", "/dev/zero", "x.mp4#" + "9" * 5000, "2001-99-99",
    "1:1:1:1", "yes", "<<", "*a", "!!python/object:os.system x",
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
    container, key = random.choice(places)
    change = random.randrange(10)
    if change == 0:
        del container[key]
    elif change == 1 and isinstance(container, dict):
        container[random.choice(WORDS)] = container.pop(key)
    elif change == 1:
        container.insert(key, copy.deepcopy(container[key]))
    elif change == 2:
        other, other_key = random.choice(places)
        container[key] = copy.deepcopy(other[other_key]) if _exists(other, other_key) else None
    elif change == 3:
        container[key] = [container[key]]
    elif change == 4:
        container[key] = str(container[key])
    elif change == 5 and isinstance(container[key], (int, float)):
        container[key] = random.choice((-container[key], container[key] + 1, container[key] * 1e6))
    elif change == 6 and random.random() < 0.2:
        container[key] = MARK
    else:
        container[key] = copy.deepcopy(random.choice(VALUES))
    return tree


def _exists(container: Any, key: Any) -> bool:
    return key in container if isinstance(container, dict) else key < len(container)


def _places(tree: Any) -> Any:
    waiting = [tree]
    while waiting:
        container = waiting.pop()
        if isinstance(container, dict):
            keys: Any = list(container)
        elif isinstance(container, list):
            keys = range(min(len(container), 50))
        else:
            continue
        for key in keys:
            yield container, key
            waiting.append(container[key])


def damage_json(random: Random, document: Any) -> bytes:
    text = json.dumps(damage_tree(random, document), ensure_ascii=random.random() < 0.8)
    mark = json.dumps(MARK)
    if mark in text:
        opened, closed = random.choice((("[", "]"), ('{"a":', "}")))
        text = text.replace(mark, opened * DEEP + "0" + closed * DEEP)
    data = text.encode("utf-8", "surrogatepass")
    return damage(random, data) if random.random() < 0.1 else data
