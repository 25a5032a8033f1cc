"""The time during which at least one thread is in a stage."""

from detector.core.timeline.spans import BusyMeter


def test_overlapping_intervals_count_once():
    meter = BusyMeter()
    meter.enter(100)  # the first thread
    meter.enter(130)  # the second thread
    meter.leave(150)
    assert (meter.total_ns, meter.so_far(160)) == (0, 60)
    meter.leave(170)
    assert (meter.total_ns, meter.so_far(200)) == (70, 70)
    meter.enter(300)
    meter.leave(305)
    assert meter.total_ns == 75


def test_clock_readings_out_of_order_count_no_time_twice():
    meter = BusyMeter()
    meter.enter(100)
    meter.leave(200)
    meter.enter(150)  # this thread read its clock before the other one left
    meter.leave(180)
    assert meter.total_ns == 100
    meter.enter(190)
    meter.leave(220)
    assert meter.total_ns == 120
    meter.enter(300)
    meter.enter(310)
    meter.leave(390)
    meter.leave(380)  # read its clock first
    assert meter.total_ns == 210
