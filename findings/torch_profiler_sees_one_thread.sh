#!/usr/bin/env bash
# torch.profiler records the thread that started it, and no other: work of all other threads has no time and no row.
#
# One would guess: profile(activities=[CPU]) records what torch does on the CPU while it is on. A trace has a lane for
# each thread, and threads that start meanwhile appear in it.
#
# True (torch 2.13.0): operators of a thread that was there before, and of one that starts inside the with block, are
# missing, as are their record_function() names. Of 15 matrix products in three threads 5 are counted. With
# experimental_config=_ExperimentalConfig(profile_all_threads=True), from torch._C._profiler, all 15 are.
#
# Why it matters: video pipelines run the network in a worker thread, beside decoding and drawing. Profiled from the
# main thread, the network costs nothing and the time seems to be lost in waiting; nothing says that threads were left
# out. Start the profiler in the thread that runs the network, or use the flag.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.13.0 numpy
cd "$folder"
"$folder/venv/bin/python" - <<'PY'
import threading

import torch
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile, record_function

print("torch", torch.__version__)
matrix = torch.randn(64, 64)


def work(name):
    with record_function(name):
        for _ in range(5):
            matrix @ matrix


def recorded(**options):
    """Five products each in the thread that profiles, in one that was there before, and in one that starts later."""
    ready, go = threading.Event(), threading.Event()

    def wait_and_work():
        work("before profiling")
        ready.set()
        go.wait()
        work("older thread")

    older = threading.Thread(target=wait_and_work)
    older.start()
    ready.wait()
    with profile(activities=[ProfilerActivity.CPU], **options) as profiled:
        work("own thread")
        go.set()
        older.join()
        younger = threading.Thread(target=work, args=("younger thread",))
        younger.start()
        younger.join()
    counts = {row.key: row.count for row in profiled.key_averages()}
    return [counts.get(name, 0) for name in ("aten::mm", "own thread", "older thread", "younger thread")]


by_default = recorded()
with_flag = recorded(experimental_config=_ExperimentalConfig(profile_all_threads=True))
print("products, own, older, younger thread: by default", by_default, "with profile_all_threads", with_flag)
assert by_default == [5, 1, 0, 0], "torch has changed"
assert with_flag == [15, 1, 1, 1], "torch has changed"
PY
