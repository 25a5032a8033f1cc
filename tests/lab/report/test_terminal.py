"""The output of a run in the terminal: tables, notes and the live line."""

import io
import re
from dataclasses import replace

import pytest
from rich.cells import cell_len
from rich.console import Console

from detector.core.analysis.ledger import stage_rows, thread_rows
from detector.core.session.codec import from_builtins
from detector.core.terminal.console import SafeConsole
from detector.core.terminal.models import progress_bar
from detector.core.terminal.progress import LiveLine, progress_line, shorten
from detector.core.terminal.run import print_run
from detector.core.terminal.tables import print_pieces
from detector.core.timeline.timeline import Timeline
from detector.lab.commands.report import _print_tables
from detector.lab.report.parts.loop import describe_what_if
from detector.lab.session.passes import WhatIfFacts
from detector.lab.session.read import read_session
from tests.lab.report.sessions import PASSES, ran
from tests.session.documents import DOCUMENT, document
from tests.waiting import wait_for


def printed(width=140, verbose=True, **more):
    out = io.StringIO()
    print_run(Console(file=out, width=width), document(**more), verbose=verbose)
    return out.getvalue()


def printed_briefly(width=80, **more):
    return printed(width, verbose=False, **more)


def test_all_facts_are_printed_if_verbose():
    text = printed()
    for fact in (
        *("416x256", "640x360", "25.00", "12.50", "20.00", "80.00", "10.00", "import 0.10"),
        *("= wall", "libraries", "Inference limits this run", "as requested", "exit 7"),
        *("11 read, 10 written, 1 dropped, 2 bad", "2 person, 1 car", "4 more cut by --max-det"),
        *("boxes are meaningless", "in-ort-detected.jsonl", "x.partial.mp4", "runs/in-ort"),
    ):
        assert fact in text, fact
    assert "corrupt" not in text, "a count of zero is not mentioned"
    assert "annotate" not in text


def test_report_prints_tables_in_the_terminal(tmp_path, capsys):
    _print_tables(read_session(ran(tmp_path)))
    assert "seconds: " in capsys.readouterr().out


def test_short_form_prints_the_main_facts_in_order():
    """Detections, two rates, ledger, bottleneck and files are printed. Other facts need -v."""
    text = printed_briefly()
    facts = (
        *("10 of 11 frames", "2 person", "FPS end to end", "FPS inference", "ms per frame"),
        *("busy", "infer limits this run", "in-ort-detected.jsonl", "detect-video report"),
    )
    positions = [text.index(fact) for fact in facts]
    assert positions == sorted(positions)
    for hidden in ("= wall", "p99", "libraries", "import 0.10"):
        assert hidden not in text


def test_limiting_stage_that_is_not_the_busiest_is_explained():
    assert "(most to gain)" not in printed_briefly()
    reader = {**DOCUMENT["threads"]["reader"], "busy_s": 0.7}
    lines = printed_briefly(threads={**DOCUMENT["threads"], "reader": reader}).splitlines()
    assert any(line.endswith("<- infer limits this run (most to gain)") for line in lines)


def test_zero_frames_and_empty_images_are_mentioned():
    frames = {**DOCUMENT["frames"], "read": 0, "written": 0}
    assert "0 frames" in printed_briefly(frames=frames)
    assert "0 frames" not in printed_briefly(frames=frames, exit={"code": 2, "reason": "refused"})
    found = {**DOCUMENT["detections"], "empty": 8}
    assert "; 8 images without any" in printed_briefly(detections=found)


@pytest.mark.parametrize("width", [80, 120])
def test_short_form_fits_20_lines_without_broken_words(width):
    notes = [
        f"note number {at} with a few more words, so that it is long enough" for at in range(9)
    ]
    lines = printed_briefly(width, notes=notes, background=[0, 1]).splitlines()
    assert len(lines) <= 20
    assert all(cell_len(line) <= width for line in lines)
    text = " ".join("\n".join(lines).split())
    assert "number 2 with" in text
    assert "number 0" not in text, "notes on the setup need -v"
    assert "3 more notes" in text


@pytest.mark.parametrize(("width", "longest"), [(80, 24), (82, 26), (200, 26)])
def test_length_of_bars_follows_the_width(width, longest):
    bars = [
        len(found)
        for line in printed_briefly(width).splitlines()
        for found in re.findall(r"[█░#.]{9,}", line)
    ]
    assert set(bars) == {longest}


def test_suggested_command_quotes_the_path(tmp_path, monkeypatch):
    """A pipe cannot be read twice, so no command is suggested for it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a b").mkdir()
    (tmp_path / "a b/in.mp4").write_bytes(b"")
    text = printed_briefly(video={**DOCUMENT["video"], "path": "a b/in.mp4"})
    assert "tune 'a b/in.mp4'" in text
    assert "tune" not in printed_briefly(video={**DOCUMENT["video"], "path": "-"})


def source(name, **more):
    shared = ("video", "frames", "fps", "verdict", "outputs", "partial_outputs", "detections")
    one = {key: DOCUMENT[key] for key in (*shared, "exit")}
    return {**one, "video": {**one["video"], "path": name}, **more}


def test_at_most_six_sources_have_a_line():
    lines = printed_briefly(sources=[source(f"{at}.mp4") for at in range(9)]).splitlines()
    assert sum(".mp4: 10 frames" in line for line in lines) == 6
    assert any("3 more sources" in line for line in lines)


def test_at_most_eight_zones_have_a_line():
    def zone(at):
        counts = {"person": {"entered": at, "left": 0}, "car": {"entered": 0, "left": 0}}
        more = {"name": f"z{at}", "kind": "zone", "camera": "", "dwell_s": None}
        return {**more, "counts": counts, "most": {"person": 4}}

    zones = [zone(at) for at in range(11)]
    lines = printed_briefly(
        sources=[source("a.mp4", zones=zones), source("b.mp4", zones=[])]
    ).splitlines()
    assert "a.mp4: z0: nothing; at most 4 at once" in lines
    assert "a.mp4: z7: person entered 7; at most 4 at once" in lines
    line = {**zone(0), "kind": "line", "most": {}}
    assert "z0: nothing crossed it" in printed_briefly(sources=[source("a.mp4", zones=[line])])
    assert not any("z8" in line for line in lines)
    assert any("3 more lines and zones" in line for line in lines)


def test_device_fps_is_printed_if_known():
    fps = {**DOCUMENT["fps"], "device": 33.125}
    assert "33.1 FPS device" in printed_briefly(fps=fps)
    assert "33.12" in printed(fps=fps)
    assert "FPS device" not in printed_briefly()
    assert "device FPS" not in printed()


def test_precision_without_effect_is_noted():
    facts = {"precision": "bf16", "precision_executed": {}, "precision_text": "-"}
    assert "precision: it changed nothing" in printed_briefly(
        **facts, precision_effect="it changed nothing"
    )


def test_report_is_suggested_only_with_a_session():
    assert "detect-video report" in printed_briefly()
    out = io.StringIO()
    print_run(Console(file=out, width=80), replace(document(), session=None))
    assert "detect-video report" not in out.getvalue()


@pytest.mark.parametrize(
    ("one_line", "lines"), [(False, {"fetching", "building"}), (True, {"building"})]
)
def test_progress_has_one_line_per_step_or_one_for_all(one_line, lines):
    out = io.StringIO()
    console = SafeConsole(file=out, width=80, force_terminal=True)
    with progress_bar(console, True, one_line=one_line) as step:
        assert step("fetching", 1, 4)
        assert step("building", 4, 4)
    drawn = [one for one in re.split(r"(?:\r|\x1b\[\?*\d*[AKhl])+", out.getvalue()) if one.strip()]
    shown = drawn[-1]
    assert {word for word in ("fetching", "building") if word in shown} == lines
    assert "100%" in shown
    with progress_bar(console, False) as step:
        assert step("fetching", 1, 4)


def test_thread_that_never_ran_has_no_bar():
    threads = DOCUMENT["threads"]
    idle = dict.fromkeys(("busy_s", "wait_input_s", "other_s", "cpu_s", "wall_s"), 0.0)
    idle_thread = {**threads["reader"], **idle, "waits": {}}
    text = printed_briefly(sync=True, threads={**threads, "late": idle_thread})
    assert "reader" in text
    assert "late" not in text


def test_uncalled_stage_adds_no_thread():
    """``annotate`` did not run, so its thread is "". This name must not count as a thread."""
    stages, threads = DOCUMENT["stages"], DOCUMENT["threads"]
    assert stages["annotate"]["thread"] == ""
    text = printed_briefly(
        stages={**stages, "write": {**stages["read"], "thread": "writer"}},
        threads={**threads, "writer": threads["reader"]},
    )
    bars = [line.split("  ")[1].strip() for line in text.splitlines() if "% busy" in line]
    assert bars == ["reader", "2 workers", "writer"]


def test_input_shapes_are_counted():
    shapes = {"shapes": 3, "made": 2, "made_s": 0.4, "mean_pixels": 9e4, "square_pixels": 102400}
    assert "3 shapes" in printed_briefly(input_shapes=shapes)
    assert "3 shapes" in printed(input_shapes=shapes)
    assert "shapes" not in printed_briefly(input_shapes={**shapes, "shapes": 1})


def test_ascii_terminal_gets_ascii_bars():
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="backslashreplace")
    print_run(Console(file=out, width=80), document())
    out.flush()
    assert "#" in out.buffer.getvalue().decode("ascii")


def test_run_on_pictures_shows_no_bottleneck():
    text = printed_briefly(140, video={**DOCUMENT["video"], "kind": "pictures"})
    assert "limits this run" not in text
    assert "ms per frame" not in text
    assert "end to end" in text


def test_frames_count_as_written_only_in_videos_or_pictures():
    for outputs, word in (
        ({}, "detected"),
        ({"jsonl": "x.jsonl", "crops": "x/"}, "detected"),
        ({"video": "x.mp4"}, "written"),
        ({"pictures": "x/", "jsonl": "x.jsonl"}, "written"),
    ):
        text = printed(outputs=outputs, partial_outputs=[])
        assert f"11 read, 10 {word}, 1 dropped" in text, outputs


def test_omitted_classes_are_counted():
    by_class = {f"class{at}": 20 - at for at in range(11)}
    text = printed(detections={"total": 165, "by_class": by_class, "cut_by_max_det": 0})
    assert "33 in 3 other classes" in " ".join(text.split())


@pytest.mark.slow
@pytest.mark.parametrize("width", [20, 40, 72, 80, 200])
def test_narrow_terminal_shows_all_figures(width):
    text = printed(width)
    assert "12.50" in text, "a number is split"
    assert "worker-1" in "".join(text.split())


def test_run_without_frames_prints_no_tables():
    text = printed(
        frames={**DOCUMENT["frames"], "written": 0}, fps={"end_to_end": None, "inference": None}
    )
    assert "ledger" not in text
    assert "exit 7" in text


def test_shares_are_relative_to_the_wall_time_of_the_thread():
    rows = {row.stage: row for row in stage_rows(document(), 10)}
    assert rows["read"].share == pytest.approx(0.2 / 0.8)
    assert rows["infer"].share == pytest.approx(0.8 / 1.6)


def test_ledger_whose_parts_do_not_add_up_is_refused():
    threads = {"reader": {**DOCUMENT["threads"]["reader"], "other_s": 0.5}}
    with pytest.raises(AssertionError, match="not add up"):
        thread_rows(document(threads=threads), 10)


def test_live_line_shows_progress_and_rate():
    timeline = Timeline(nvtx=False)
    first = progress_line("/a/b/in.mp4", 0, 100, 0.0, timeline)
    assert (first.name, first.figures) == ("in.mp4", "0/100 frames  0.0 FPS")
    assert first.bar > 0
    with timeline.track("writer") as track, track.span("write", 0):
        pass
    later = progress_line("in.mp4", 50, 100, 2.0, timeline)
    assert re.findall(r"\d\S+|\w+$", later.figures) == ["50/100", "25.0", "0:02", "write"]
    too_many = progress_line("in.mp4", 120, 100, 2.0, timeline)
    assert too_many.figures.startswith("120 frames"), "the declared number was too low"
    assert too_many.bar == 0


def test_bar_fills_the_remaining_width():
    timeline = Timeline(nvtx=False)
    for width in (60, 61):
        shown = progress_line("in.mp4", 5, 10, 3.0, timeline, width)
        assert len(shown.name) + shown.bar + len(shown.figures) + 2 * len("  ") == width


@pytest.mark.parametrize("width", [0, 1, 10, 40, 200])
@pytest.mark.parametrize(
    "path", ["in.mp4", "/a/" + "b" * 90 + "/" + "c" * 120 + ".mp4", "视频" * 40, "x/", "\t\n"]
)
def test_live_line_fits_any_path(path, width):
    timeline = Timeline(nvtx=False)
    with timeline.track("writer") as track, track.span("preprocess", 0):
        pass
    for written, total in ((0, None), (123456, 9999999), (5, 10)):
        shown = progress_line(path, written, total, 3.0, timeline, width)
        words = f"{shown.name}  {shown.figures}".strip()
        bar = shown.bar + 2 if shown.bar else 0
        assert cell_len(words) + bar <= max(width, 0) or not shown.name
        out = io.StringIO()
        Console(file=out, width=max(width, 1)).print(shown.draw(), end="")
        assert "\n" not in out.getvalue().strip("\n") or width < 8


def test_long_name_is_shortened_in_the_middle():
    assert shorten("in.mp4", 6) == "in.mp4"
    assert shorten("abcdefghijklmnopqrstuvwxyz.mp4", 13) == "abcde...z.mp4"
    assert cell_len(shorten("视频" * 40, 13)) <= 13


def test_live_line_is_drawn_on_a_terminal():
    class Info:
        path, frames_declared = "in.mp4", 10

    class Progress:
        written = 3

    out = io.StringIO()
    live = LiveLine(Console(file=out, force_terminal=True, width=100))
    live.start(Info, Progress, Timeline(nvtx=False), None)
    wait_for(lambda: "3/10 frames" in out.getvalue())
    live.stop()
    live.stop()
    assert live._thread is None


def test_only_the_long_form_prints_the_executed_precision():
    fp32 = {"fp32": {"layers": 1.0, "macs": 1.0, "bytes": 1.0}}
    precision_facts = {
        "precision_executed": fp32,
        "precision_text": "fp32 100% of MACs",
        "precision_effect": None,
    }
    assert "of MACs" not in printed_briefly(**precision_facts), "only -v shows it"
    assert "executed precision: fp32 100%" in printed(**precision_facts, precision="bf16")
    assert "precision: changed nothing" in printed(
        **{**precision_facts, "precision_effect": "changed nothing"}, precision="bf16"
    )


def test_what_if_shows_gains_with_intervals_and_warnings():
    out = io.StringIO()
    doubts = ["24 frames are few"]
    facts = from_builtins(PASSES["what_if"] | {"doubts": doubts}, WhatIfFacts, "the test")
    print_pieces(Console(file=out, width=140), describe_what_if(facts))
    lines = out.getvalue().splitlines()
    rows = {
        name: " ".join(next(line for line in lines if line.strip().startswith(name)).split())
        for name in ("infer free", "read free", "overlap off")
    }
    assert rows["infer free"] == "infer free +53.8% +48.0% +56.0% 62 16"
    # Some rounds were faster and some slower than the unchanged run: "no clear gain".
    assert rows["read free"].endswith("gain -2.0% +4.0% 40 25")
    assert rows["overlap off"].startswith("overlap off -45.0% -47.0% -43.0%")
    assert "unreliable: 24 frames are few" in lines
    assert any(line.startswith("not measured: head free: ") for line in lines)
