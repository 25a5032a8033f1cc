"""The peaks of this computer, measured in a few seconds: matrix products by type, and bandwidth.

FLOPs = 2 x MACs; for int8 they are integer operations. Each figure is the best of several tries,
since a peak is what the computer can do, not what it does on average. The peaks are measured with
the number of threads that the engine had.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any

import numpy as np

from detector.lab.session.network import Peaks

# Sides of the square matrices. A large product hides the cost of starting threads; a small one ends
# before another process gets its turn on the core.
SIZES = (384, 1024)
BUDGET_S = 0.6  # for each type; half of it for each size
TRIAD_BYTES = 96 << 20  # of each of the three arrays: larger than the caches of such computers
BLOCK = 1 << 14  # doubles worked on at once: 128 KB, which stays in a core's own cache


Product = tuple[str, Callable[[], Any]] | None
"""The library and one product by it; None where the library is not installed."""


def measure_peaks(threads: int) -> Peaks:
    """GFLOP/s by type (int8: GOP/s) with the library that reached it, and the bandwidth of STREAM's
    triad: two arrays read, one written."""
    tries: dict[str, list[Callable[[int, int], Product]]] = {
        "fp32": [_ort_fp32, _torch("float32")],
        "bf16": [_torch("bfloat16")],
        "int8": [_ort_int8],
    }
    gflops_s: dict[str, float] = {}
    by: dict[str, str] = {}
    for kind, makers in tries.items():
        for maker, size in product(makers, SIZES):
            made = maker(threads, size)
            if made is not None:
                library, run = made
                rate = 2 * size**3 / best_s(run, BUDGET_S / len(SIZES)) / 1e9
                if rate > gflops_s.get(kind, 0.0):
                    gflops_s[kind], by[kind] = rate, library
    bandwidth = triad_gbytes_s(threads)
    return Peaks(gflops_s=gflops_s, by=by, threads=threads, bandwidth_gbytes_s=bandwidth)


def best_s(run: Callable[[], Any], budget_s: float) -> float:
    """Seconds of the fastest call. Makes as many calls as fit into the budget, but at least three,
    after one to warm up."""
    run()
    best, until, calls = float("inf"), time.perf_counter() + budget_s, 0
    while calls < 3 or time.perf_counter() < until:
        start = time.perf_counter()
        run()
        best, calls = min(best, time.perf_counter() - start), calls + 1
    return best


def _ort_fp32(threads: int, size: int) -> Product:
    from onnx import TensorProto

    values = np.random.default_rng(0).random((size, size), np.float32)
    run = _ort(
        "MatMul",
        threads,
        (TensorProto.FLOAT, values),
        (TensorProto.FLOAT, values),
        TensorProto.FLOAT,
    )
    return run and ("onnxruntime", run)


def _ort_int8(threads: int, size: int) -> Product:
    from onnx import TensorProto

    dice = np.random.default_rng(0)
    a, b = (
        dice.integers(0, 255, (size, size), np.uint8),
        dice.integers(-127, 127, (size, size), np.int8),
    )
    run = _ort(
        "MatMulInteger", threads, (TensorProto.UINT8, a), (TensorProto.INT8, b), TensorProto.INT32
    )
    return run and ("onnxruntime", run)


def _ort(
    operator: str, threads: int, a: tuple[int, Any], b: tuple[int, Any], out: int
) -> Callable[[], Any] | None:
    """One product in a session of its own. The right matrix is a constant, so that the library may
    pack it as it packs weights."""
    try:
        import onnxruntime as ort
    except ImportError:
        return None
    from onnx import helper, numpy_helper

    graph = helper.make_graph(
        [helper.make_node(operator, ["a", "b"], ["c"])],
        "peak",
        [helper.make_tensor_value_info("a", a[0], a[1].shape)],
        [helper.make_tensor_value_info("c", out, a[1].shape)],
        [numpy_helper.from_array(b[1], "b")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 4
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return lambda: session.run(None, {"a": a[1]})


def _torch(kind: str) -> Callable[[int, int], Product]:
    def make(threads: int, size: int) -> Product:
        try:
            import torch
        except ImportError:
            return None
        values = torch.rand(size, size).to(getattr(torch, kind))
        out = torch.empty_like(values)

        def run() -> None:
            before = torch.get_num_threads()
            torch.set_num_threads(threads)
            torch.mm(values, values, out=out)
            torch.set_num_threads(before)

        return "torch", run

    return make


def triad_gbytes_s(threads: int) -> float:
    """a = b + 3 c over arrays far larger than the caches; 24 bytes an element, as STREAM counts."""
    count = TRIAD_BYTES // 8 // threads // BLOCK * BLOCK
    parts = [[np.full(count, value) for value in (0.0, 1.0, 2.0)] for _ in range(threads)]

    def work(arrays: list[Any]) -> None:
        a, b, c = arrays
        for at in range(0, count, BLOCK):
            piece = a[at : at + BLOCK]
            np.multiply(c[at : at + BLOCK], 3.0, out=piece)
            np.add(piece, b[at : at + BLOCK], out=piece)

    with ThreadPoolExecutor(threads) as pool:
        seconds = best_s(lambda: list(pool.map(work, parts)), BUDGET_S)
    return 24 * count * threads / seconds / 1e9
