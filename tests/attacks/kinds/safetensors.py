"""Damaged .safetensors files: values in the header, its stated length, or any bytes."""

import json
from random import Random

from tests.attacks.case import Case, Kind
from tests.attacks.inputs import content
from tests.attacks.mutate import NUMBERS, damage, damage_json, damage_tree

CODES = frozenset({0, 2, 4})


def make(random: Random) -> Case:
    whole = content("t.safetensors")
    length = int.from_bytes(whole[:8], "little")
    header, numbers = whole[8 : 8 + length], whole[8 + length :]
    if random.random() < 0.3:
        data = damage(random, whole)
    else:
        entries = json.loads(header)
        name = random.choice(list(entries))  # change only one entry, so that others are still read
        text = json.dumps({**entries, name: damage_tree(random, entries[name])}).encode()
        text = text if random.random() < 0.6 else damage_json(random, entries)
        stated = len(text) if random.random() < 0.8 else random.choice(NUMBERS) % 2**64
        data = stated.to_bytes(8, "little") + text + numbers
    files = {"t.yaml": content("t.yaml"), "m.safetensors": data}
    argv = ("models", "show", "t.yaml", "--weights", "m.safetensors", "--size", "64", "--json")
    if random.random() < 0.3:
        argv = ("models", "show", "m.safetensors", "--json")
    return Case(files, argv, CODES)


KIND = Kind("safetensors", make, share=5)
