"""Test the table that a live run prints on a terminal: content and width."""

import io

import pytest
from rich.cells import cell_len
from rich.console import Console

from detector.core.session.document import AgeFigures
from detector.live.base import LiveFigures, StreamFigures
from detector.live.terminal.cameras import draw


def stream(name: str, state: str = "live", **more) -> StreamFigures:
    figures = {
        "url": "rtsp://10.0.0.1/x",
        "since_s": 12345.0,
        "received": 1_234_567,
        "processed": 1_000_000,
        "dropped": {"newer": 234_567},
        "reconnects": 3,
        "stalls": 2,
        "age_ms": AgeFigures(p50=123.4, p90=456.7, p99=7890.1, max=99999.0),
        "camera_fps": 29.97,
        "processed_fps": 14.98,
    }
    return StreamFigures(name=name, state=state, **{**figures, **more})


def print_table(streams, width=80, height=24, bottleneck="Inference limits this run."):
    figures = LiveFigures(tuple(streams), 60.0, 20.0, 20.0, bottleneck=bottleneck)
    console = Console(width=width, height=height, file=io.StringIO())
    console.print(draw(figures, width - 1, height - 2))
    return console.file.getvalue().splitlines()


def test_table_has_a_line_for_each_camera():
    lines = print_table([stream("door"), stream("yard", "stalled"), stream("gate", frozen=True)])
    assert "door" in lines[1]
    assert "live" in lines[1]
    assert "15.0/30.0" in lines[1]
    assert "19%" in lines[1]
    assert "stalled 12345 s" in lines[2]
    assert "frozen" in lines[3]


@pytest.mark.parametrize("width", [80, 100])
def test_table_fits_the_terminal(width):
    error = "rtsp://10.0.0.1/x: " + "nothing listens at this port " * 5
    lines = print_table(
        [
            stream("x" * 40),
            stream("y" * 40, "waiting", next_try_s=299.0, error=error, camera_fps=None),
        ],
        width,
    )
    assert all(cell_len(line) <= width for line in lines)
    assert any("next try 299 s" in line for line in lines)
    assert any("nothing listens" in line for line in lines)


def test_cameras_that_do_not_fit_are_only_counted():
    lines = print_table([stream(f"cam{i}") for i in range(40)], height=12)
    assert len(lines) <= 12
    assert any("more cameras" in line for line in lines)
