"""Damaged nsys recordings (SQLite): their bytes, their values, or their tables and columns."""

import sqlite3
from contextlib import suppress
from random import Random
from typing import Any

from tests.attacks.case import Case, Kind
from tests.attacks.inputs import content
from tests.attacks.mutate import NUMBERS, WORDS, damage

CODES = frozenset({0, 2})
TABLES = (
    "NVTX_EVENTS",
    "NVTX_EVENTS",
    "NVTX_EVENTS",
    "StringIds",
    "OSRT_API",
    "CUPTI_ACTIVITY_KIND_KERNEL",
)


def make(random: Random) -> Case:
    data = damage_recording(random, content("nsys.sqlite"))
    more = ("--json",) if random.random() < 0.5 else ()
    return Case({"n.sqlite": data}, ("profile", "--nsys", "n.sqlite", *more), CODES)


def damage_recording(random: Random, whole: bytes) -> bytes:
    if random.random() < 0.4:
        return damage(random, whole)
    database = sqlite3.connect(":memory:")
    try:
        database.deserialize(whole)
        for _ in range(random.choice((1, 1, 2, 5))):
            with suppress(sqlite3.OperationalError):  # the new column name may exist already
                _change(random, database)
        database.commit()
        return database.serialize()
    finally:
        database.close()


def _change(random: Random, database: sqlite3.Connection) -> None:
    table = random.choice(TABLES)
    columns = [row[1] for row in database.execute(f"pragma table_info({table})")]
    if not columns:
        return
    column, change = random.choice(columns), random.randrange(11)
    if change == 0:
        database.execute(f"drop table {table}")
    elif change == 1:
        database.execute(f"alter table {table} rename column {column} to other")
    elif change == 2:
        database.execute(f"delete from {table} where rowid % {random.choice((1, 2, 10))} = 0")
    elif change == 3:
        database.execute(f"insert into {table} select * from {table}")
    elif change == 4:
        database.execute(f"update {table} set {column} = -{column} where rowid % 3 = 0")
    elif change == 5:  # reverse the order of some rows
        rows = f"rowid % {random.choice((1, 2, 3))} = 0"
        turned = f"(select max({column}) from {table}) - {column}"
        database.execute(f"update {table} set {column} = {turned} where {rows}")
    else:
        rows = "1" if random.random() < 0.3 else f"rowid % 7 = {random.randrange(7)}"
        database.execute(f"update {table} set {column} = ? where {rows}", (_value(random),))


def _value(random: Random) -> Any:
    number = (random.choice(NUMBERS) + 2**63) % 2**64 - 2**63
    return random.choice(
        (None, number, 1e300, -0.5, b"\xff\x00", random.choice(WORDS), "infer", "loop batch=0")
    )


KIND = Kind("nsys files", make, share=4)
