"""A GPU's busy and idle time, for intervals checked by hand."""

import pytest

from detector.lab.analysis.layers import LAUNCHING, NO_REQUEST, WAITING, device_facts


@pytest.mark.parametrize(
    ("kernels", "host", "waits", "busy_ms", "idle", "launch_bound"),
    [
        ([(0, 10)], [(0, 2)], [], 10, {}, False),
        # unsorted kernels of two streams overlap; the overlap counts once
        ([(3, 4), (1, 3), (2, 4)], [(0, 4)], [], 3, {LAUNCHING: 1}, False),
        ([(2, 3), (8, 9)], [(0, 9)], [], 2, {LAUNCHING: 7}, True),
        ([(0, 1), (9, 10)], [(0, 1)], [], 2, {NO_REQUEST: 8}, False),  # nothing to launch
        ([(0, 4), (6, 10)], [(5, 6)], [], 8, {LAUNCHING: 1, NO_REQUEST: 1}, False),
        ([(2, 4)], [(0, 1), (5, 8)], [], 2, {LAUNCHING: 4, NO_REQUEST: 2}, True),
        ([(0, 2), (4, 5)], [(2, 4)], [], 3, {LAUNCHING: 2}, False),  # mostly busy
        # A host that waits launches nothing.
        ([(1, 2)], [(0, 1)], [(2, 5)], 1, {LAUNCHING: 1, WAITING: 3}, False),
        ([(4, 5)], [(0, 5)], [(1, 5)], 1, {LAUNCHING: 1, WAITING: 3}, False),  # wait in an operator
        ([(0, 1)], [(1, 5)], [(8, 10)], 1, {LAUNCHING: 4, WAITING: 2, NO_REQUEST: 3}, False),
    ],
)
def test_busy_and_idle_times_fill_the_window(kernels, host, waits, busy_ms, idle, launch_bound):
    facts = device_facts(kernels, host, device="cuda:0", batches=1, waits=waits)
    assert (facts.busy_ms, facts.idle_ms, facts.launch_bound) == (busy_ms, idle, launch_bound)
    assert facts.busy_ms + sum(idle.values()) == pytest.approx(facts.window_ms)
    assert facts.busy_share == pytest.approx(busy_ms / facts.window_ms)
    assert {gap.cause for gap in facts.longest_gaps[:1]} <= set(idle)
