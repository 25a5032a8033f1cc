"""The table of torch operators, compared with torch.profiler for batches of 1 and 4."""

from collections import defaultdict
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from detector.core import engines
from detector.core.config.levels import resolve_config
from detector.core.session.store import Session
from detector.lab.profile import torch as operators
from detector.lab.profile.base import Occasion
from detector.lab.profile.torch import MB, explain_operators, operator_rows
from detector.lab.report.parts.network import describe_torch, operators_table
from detector.lab.session.read import read_session
from tests.lab.report.sessions import CLIP, ran
from tests.networks import need_engine

PASSES = 3
FLAGS = {"engine": "torch", "size": "128x128", "frames": 4, "threads": 1, "device": "cpu"}


def facts_of(folder, batch):
    need_engine("torch")
    session = ran(folder, **FLAGS, batch=batch)
    config = resolve_config(None, {**FLAGS, "batch": batch})
    occasion = Occasion(str(CLIP), config, Session(session), read_session(session))
    facts = operators.profile_operators(occasion)
    machine, batches = operators.open_with_batches(occasion)
    return facts, machine, batches


@pytest.mark.slow  # it imports torch
@pytest.mark.parametrize(("device", "own"), [("cpu", {}), ("cuda:0", {"graphs": "0"})])
def test_operators_are_profiled_without_cuda_graphs(monkeypatch, device, own):
    """A CUDA graph would hide the operators from the profiler."""
    pytest.importorskip("torch", reason="machine: torch is not installed")
    options = []

    def record(machine, batches, count, **what):
        options.append(what["own"])
        raise StopIteration

    machine = SimpleNamespace(engine=SimpleNamespace(device=device))
    monkeypatch.setattr(operators, "open_with_batches", lambda occasion: (machine, []))
    monkeypatch.setattr(operators, "record_batches", record)
    plain = SimpleNamespace(document=SimpleNamespace(engine="torch"))
    with pytest.raises(StopIteration):
        operators.profile_operators(SimpleNamespace(plain=plain))
    assert options == [own]


def profiled_by_hand(machine, batches):
    """Profile the same network with torch.profiler as its tutorial does."""
    from torch.profiler import ProfilerActivity, profile

    alone = replace(machine.options, requests=1, concurrency=1)
    with engines.open("torch", machine.network, alone) as engine:
        (request,) = engine.requests
        for _ in range(2):
            request.infer(len(request.slot))
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            for at in range(PASSES):
                np.copyto(request.slot, batches[at % len(batches)])
                request.infer(len(request.slot))
    return profiler


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 4])
def test_operator_totals_per_frame_equal_those_of_torch_profiler(tmp_path, batch):
    facts, machine, batches = facts_of(tmp_path, batch)
    profiler = profiled_by_hand(machine, batches)
    torch_rows = {str(one.key): one for one in profiler.key_averages()}
    frames = PASSES * batch
    assert (facts.frames, facts.batch) == (operators.BATCHES * batch, batch)
    assert len(facts.rows) > 10
    for row in facts.rows:  # figures that do not depend on time must be equal
        event = torch_rows[row.name]
        assert row.calls == pytest.approx(event.count / frames), row.name
        # The row [memory] varies, since a pass may reuse a buffer of the previous one.
        if row.name != "[memory]":
            assert row.cpu_mb == pytest.approx(event.cpu_memory_usage / MB / frames, abs=1e-3)
            own = event.self_cpu_memory_usage / MB / frames
            assert row.self_cpu_mb == pytest.approx(own, abs=1e-3)
        # Times are per frame, like the number of calls.
        assert row.share * facts.self_ms == pytest.approx(row.self_ms), row.name


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 4])
def test_figures_equal_the_averages_of_torch_profiler(tmp_path, batch):
    _, machine, batches = facts_of(tmp_path, batch)
    events = profiled_by_hand(machine, batches).key_averages()
    torch_rows, frames = {str(one.key): one for one in events}, PASSES * batch
    rows = operator_rows(events, frames)
    for row in rows:
        event = torch_rows[row.name]
        assert row.self_ms * frames == pytest.approx(event.self_cpu_time_total / 1e3)
        assert row.total_ms * frames == pytest.approx(event.cpu_time_total / 1e3)
        assert row.cpu_avg_ms == pytest.approx(event.cpu_time / 1e3)  # "CPU time avg"
        assert row.self_cpu_mb * frames == pytest.approx(event.self_cpu_memory_usage / MB)
    assert sum(row.share for row in rows) == pytest.approx(1)


def event(on="CPU", marked=False, **times):
    fields = defaultdict(int, times)
    names = ("self_cpu_time_total", "cpu_time_total", "self_device_time_total")
    more = ("device_time_total", "self_cpu_memory_usage", "cpu_memory_usage")
    last = ("self_device_memory_usage", "device_memory_usage")
    return SimpleNamespace(
        key=times["key"],
        count=times["count"],
        device_type=SimpleNamespace(name=on),
        is_user_annotation=marked,
        **{one: fields[one] for one in names + more + last},
    )


def test_kernel_time_is_counted_once():
    """torch reports a kernel's time both for the operator that launched it and in its own row."""
    times = {"self_device_time_total": 6000, "device_time_total": 6000, "count": 10}
    rows = operator_rows(
        [
            event(key="aten::conv2d", self_cpu_time_total=2000, cpu_time_total=2000, **times),
            event(key="sm80_xmma", on="CUDA", **times),
            event(key="a range of somebody", on="CUDA", marked=True, **times),
        ],
        10,
    )
    shares = {row.name: row.share for row in rows}
    expected = {"sm80_xmma": 0.75, "aten::conv2d": 0.25, "a range of somebody": 0}
    assert shares == pytest.approx(expected)
    assert [row.device_ms for row in rows] == [0.6] * 3


def test_operator_table_has_gpu_columns():
    gpu_event = event(
        key="aten::conv2d",
        count=20,
        self_cpu_time_total=10_000,
        cpu_time_total=40_000,
        self_device_time_total=0,
        device_time_total=60_000,
        self_device_memory_usage=-30 * MB,
        device_memory_usage=90 * MB,
    )
    (row,) = operator_rows([gpu_event], 10)
    assert (row.calls, row.self_ms, row.total_ms, row.device_total_ms) == (2, 1, 4, 6)
    assert (row.cpu_avg_ms, row.device_avg_ms) == (2, 3)
    assert (row.self_device_mb, row.device_mb) == (-3, 9)
    facts = operators.TorchFacts(
        rows=[row],
        by_shape=[],
        self_ms=1.0,
        trace="t",
        frames=10,
        batch=2,
        device="cuda:0",
        forward_ms=10.0,
        profiled_ms=12.0,
        slowdown=1.2,
        flag=explain_operators(1.0, 6.0),
    )
    heads = [column.head("ms") for column in operators_table(facts).columns]
    assert {"GPU self MB", "GPU total MB", "GPU per call", "self MB", "total MB"} <= {*heads}
    lines = [line for line in describe_torch(facts) if isinstance(line, str)]
    assert "10 steady" in operators_table(facts).title
    assert any("1.000 ms" in line for line in lines)
    assert any("6.000 ms" in line for line in lines)
    assert any(line.startswith("note: the operators") for line in lines)


@pytest.mark.parametrize(
    ("self_ms", "pass_ms", "word"),
    [(9.5, 10, None), (10.9, 10, None), (5, 10, "Python code"), (20, 10, "parallel")],
)
def test_times_that_do_not_add_up_are_flagged(self_ms, pass_ms, word):
    reason = explain_operators(self_ms, pass_ms)
    assert (reason is None) if word is None else (word in reason)
