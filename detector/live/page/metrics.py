"""Exports the figures of a run to Prometheus.

Metric names follow Prometheus's conventions: a prefix, base units, ``_total`` for counters. Values
are read from the run when Prometheus scrapes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from detector.core import __version__
from detector.live.base import LiveFigures, StreamFigures
from detector.live.page.documents import LIVE, is_healthy
from detector.live.sources.base import STATES

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"  # the format of ``generate_latest``


class RunCollector(Collector):
    def __init__(self, figures: Callable[[], LiveFigures | None], page: Any) -> None:
        self._figures, self._page = figures, page

    def describe(self) -> list[Metric]:
        return []  # otherwise the registry would call ``collect`` to get the names

    def collect(self) -> Iterator[Metric]:
        return (metric for metric in self._all() if metric.samples)

    def _all(self) -> Iterator[Metric]:
        info = InfoMetricFamily("detect_video", "Version of detect-video.")
        info.add_metric((), {"version": __version__})
        yield info
        figures = self._figures()
        yield _gauge(
            "healthy",
            "1 if a camera is live, the engine responds, and rows and recordings are written.",
            is_healthy(figures),
        )
        if figures is not None:
            yield from _run_metrics(figures)
            yield from _stream_metrics(figures.streams)
        yield from _page_metrics(self._page)


def make_registry(figures: Callable[[], LiveFigures | None], page: Any) -> CollectorRegistry:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(RunCollector(figures, page))
    ProcessCollector(registry=registry)
    return registry


def _run_metrics(figures: LiveFigures) -> Iterator[Metric]:
    for name, text, value in (
        ("uptime_seconds", "Time since the run started.", figures.uptime_s),
        (
            "inference_pictures_per_second",
            "Frames per second of engine time, over the last few seconds.",
            figures.inference_fps,
        ),
        (
            "processed_pictures_per_second",
            "Frames detected per second, all cameras together, over the last few seconds.",
            figures.end_to_end_fps,
        ),
        ("cpu_busy_ratio", "Share of all cores used by this program.", figures.cpu_share),
        (
            "capacity_cameras",
            "Cameras that this machine could handle (estimate).",
            figures.capacity,
        ),
        (
            "engine_stalled_seconds",
            "Time since the engine last finished a request; 0 if it is idle.",
            figures.engine_age_s,
        ),
    ):
        yield _gauge(name, text, value)
    busy = _gauges("stage_busy_ratio", "How busy the stage was in the last few seconds.", "stage")
    for stage, share in figures.busy.items():
        busy.add_metric((stage,), share)
    text = "Events that passed to a receiver, or were held back by its filter or its limit."
    events = _counters("events", text, "receiver", "result")
    for labels, count in figures.events.items():
        events.add_metric(labels, count)
    text = '1 if the output cannot be written or delivered now. Receivers of events have camera="".'
    failing = _gauges("output_failing", text, "camera", "output")
    lost = _counters("output_lost", "Rows, pictures or events not written.", "camera", "output")
    for key, (fails, count) in figures.outputs.items():
        failing.add_metric(key, fails)
        lost.add_metric(key, count)
    yield from (busy, events, failing, lost)


def _stream_metrics(streams: tuple[StreamFigures, ...]) -> Iterator[Metric]:
    for name, text in (
        ("received", "Frames received."),
        ("processed", "Frames detected."),
        ("reconnects", "Number of reconnects."),
        ("stalls", "Number of times a connected camera stopped sending."),
    ):
        unit = f"{name}_pictures" if name in ("received", "processed") else name
        counter = _counters(f"stream_{unit}", text, "camera")
        for stream in streams:
            counter.add_metric((stream.name,), getattr(stream, name))
        yield counter
    text = "Frames received but not detected, by reason."
    dropped = _counters("stream_dropped_pictures", text, "camera", "reason")
    text = "1 for the current state of the camera, else 0."
    state = _gauges("stream_state", text, "camera", "state")
    up = _gauges("stream_up", "1 if frames arrive.", "camera")
    frozen = _gauges("stream_frozen", "1 if the camera keeps sending the same picture.", "camera")
    # prometheus-client's SummaryMetricFamily has no quantiles.
    age_name = "detect_video_stream_age_seconds"
    text = "Age of frames when they were detected, over the last few seconds."
    age = Metric(age_name, text, "summary")
    text = "Frames per second received and processed, over the last few seconds."
    rates = _gauges("stream_pictures_per_second", text, "camera", "what")
    for stream in streams:
        for reason, count in stream.dropped.items():
            dropped.add_metric((stream.name, reason), count)
        for name in STATES:
            state.add_metric((stream.name, name), stream.state == name)
        up.add_metric((stream.name,), stream.state == LIVE)
        frozen.add_metric((stream.name,), stream.frozen)
        quantiles = {"0.5": stream.age_ms.p50, "0.9": stream.age_ms.p90, "0.99": stream.age_ms.p99}
        for quantile, value_ms in quantiles.items():
            if value_ms is not None:
                labels = {"camera": stream.name, "quantile": quantile}
                age.add_sample(age_name, labels, value_ms / 1000)
        age.add_sample(f"{age_name}_count", {"camera": stream.name}, stream.processed)
        for what, fps in (("received", stream.camera_fps), ("processed", stream.processed_fps)):
            if fps is not None:
                rates.add_metric((stream.name, what), fps)
    yield from (dropped, state, up, frozen, age, rates, *_zone_metrics(streams))


def _zone_metrics(streams: tuple[StreamFigures, ...]) -> Iterator[Metric]:
    went_in, went_out = (
        _counters(f"zone_{what}", text, "camera", "zone", "class")
        for what, text in (
            ("in", 'Crossings of a line in the direction "in", or objects that entered a zone.'),
            ("out", 'Crossings of a line in the direction "out", or objects that left a zone.'),
        )
    )
    inside = _gauges("zone_inside", "Objects in a zone.", "camera", "zone")
    for stream in streams:
        for zone in stream.zones:
            for name, sums in zone.counts.items():
                for counter, count in zip((went_in, went_out), sums, strict=True):
                    counter.add_metric((stream.name, zone.shape.name, name), count)
            if zone.inside is not None:
                inside.add_metric((stream.name, zone.shape.name), zone.inside)
    yield from (went_in, went_out, inside)


def _page_metrics(page: Any) -> Iterator[Metric]:
    hub = page.hub
    yield _gauge("page_watchers", "Picture streams being watched.", hub.watchers())
    yield _gauge("page_connections", "Open connections.", len(page.connections))
    for name, text, count in (
        ("page_encoded_pictures", "Pictures encoded for viewers.", hub.encoded),
        ("page_encoded_bytes", "Bytes of pictures encoded for viewers.", hub.encoded_bytes),
        ("page_skipped_pictures", "Pictures skipped for slow viewers.", page.streams.skipped),
        ("page_lost_events", "Events lost to slow viewers.", hub.lost()),
        (
            "page_refused_logins",
            "Logins refused for a wrong token or too many attempts.",
            page.access.refused,
        ),
    ):
        counter = _counters(name, text)
        counter.add_metric((), count)
        yield counter
    requests = _counters("page_requests", "HTTP responses, by status.", "status")
    for status, count in sorted(page.gate.requests.items()):
        requests.add_metric((str(status),), count)
    yield requests


def _gauges(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"detect_video_{name}", text, labels=labels)


def _counters(name: str, text: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"detect_video_{name}", text, labels=labels)


def _gauge(name: str, text: str, value: float | None) -> Metric:
    gauge = _gauges(name, text)
    if value is not None:
        gauge.add_metric((), value)
    return gauge
