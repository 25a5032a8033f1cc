"""No output overwrites a session, a user's file, or a file that the command reads."""

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

import cv2
import onnx
import pytest

from tests.attacks.inputs import tree
from tests.cli.command import invoke
from tests.cli.small import write_network
from tests.lab.datasets.samples import coco_document
from tests.lab.datasets.samples import picture as labelled_picture
from tests.models.exports import anchor_free
from tests.sources.clips import picture, write_video

LIST = ".detect-video-session"


def run(*arguments: object) -> int:
    result = invoke(*arguments)
    assert result.exit_code == 0 or len(result.stderr.splitlines()) == 1, result.stderr
    return result.exit_code


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_video(tmp_path / "in.mp4", 3)
    write_video(tmp_path / "cal.mp4", 3)
    write_network(tmp_path)
    (tmp_path / "n.txt").write_text("a\nb\n")
    (tmp_path / "c.yaml").write_text("conf: 0.4\n")
    (tmp_path / "photos").mkdir()
    cv2.imwrite(str(tmp_path / "photos/a.png"), picture(0))
    labelled_picture(tmp_path / "a.jpg")
    labelled_picture(tmp_path / "b.jpg")
    (tmp_path / "labels.json").write_text(json.dumps(coco_document()))
    return tmp_path


def linked(target: str, suffix: str) -> str:
    os.link(target, f"hard{suffix}")
    return f"hard{suffix}"


def symbolic(target: str, suffix: str) -> str:
    os.symlink(target, f"soft{suffix}")
    return f"soft{suffix}"


def dotted(target: str, suffix: str) -> str:
    return f"../{Path.cwd().name}/./{target}"


NULL = ("--engine", "null")
BUILD = ("build", "x.cfg", "--to", "onnx", *NULL)
OVERWRITES = {
    "weights": (*BUILD, "-o", "x.weights"),
    "cfg": (*BUILD, "-o", "x.cfg"),
    "names": (*BUILD, "--names", "n.txt", "-o", "n.txt"),
    "configuration": (*BUILD, "--config", "c.yaml", "-o", "c.yaml"),
    "calibration source": (*BUILD, "--calibrate", "cal.mp4", "-o", "cal.mp4"),
    "picture of the calibration folder": (*BUILD, "--calibrate", "photos", "-o", "photos/a.png"),
    "source": ("in.mp4", *NULL, "-o", "in.mp4"),
    "names in a run": ("in.mp4", "--model", "x.cfg", *NULL, "--names", "n.txt", "-o", "n.txt"),
    "calibration source in a run": ("in.mp4", *NULL, "--calibrate", "cal.mp4", "-o", "cal.mp4"),
    "source of a profile": ("profile", "in.mp4", *NULL, "--only", "loop", "-o", "in.mp4"),
}


@pytest.mark.parametrize("case", OVERWRITES)
def test_input_is_refused_as_output(here: Path, case: str) -> None:
    before = tree(here)
    assert run(*OVERWRITES[case]) == 2
    assert tree(here) == before


@pytest.mark.parametrize("name", [linked, symbolic, dotted])
@pytest.mark.parametrize(
    ("command", "target", "suffix"),
    [(BUILD, "x.weights", ".onnx"), (("in.mp4", *NULL), "in.mp4", ".mp4")],
    ids=["build", "detect"],
)
def test_input_under_another_name_is_refused_as_output(
    here: Path, command: tuple[str, ...], target: str, suffix: str, name: Callable[[str, str], str]
) -> None:
    other = name(target, suffix)
    before = tree(here)
    assert run(*command, "-o", other) == 2
    assert tree(here) == before


def test_external_data_of_a_model_is_refused_as_output(here: Path) -> None:
    anchor_free().save(here / "y.onnx")
    model = onnx.load(here / "y.onnx")
    external = {"save_as_external_data": True, "location": "y.onnx.data", "size_threshold": 0}
    onnx.save_model(model, here / "y.onnx", **external)
    before = tree(here)
    for target in ("y.onnx", "y.onnx.data"):
        assert run("build", "y.onnx", "--to", "onnx", "-o", target) == 2
        assert tree(here) == before


def test_output_does_not_replace_a_source_that_is_read_later(here: Path) -> None:
    (here / "out").mkdir()
    write_video(here / "out/in-null-detected.mp4", 3)
    before = (here / "out/in-null-detected.mp4").read_bytes()
    assert run("in.mp4", "out/in-null-detected.mp4", *NULL, "-o", "out/") == 0
    assert (here / "out/in-null-detected-2.mp4").exists()  # a default name gets a number
    assert (here / "out/in-null-detected.mp4").read_bytes() == before


def test_run_says_whether_it_keeps_an_earlier_output(here: Path) -> None:
    words = [["in.mp4", *map(str, NULL), "--conf", conf] for conf in ("0.3", "0.4")]
    assert ["is kept:" in invoke(*one).stdout for one in words] == [False, True]


@pytest.mark.slow
def test_rows_beside_an_output_given_with_o_are_replaced_together_with_it(here: Path) -> None:
    words = ["in.mp4", *map(str, NULL), "-o", "out.mp4", "--conf"]
    assert "is kept:" not in invoke(*words, "0.3").stdout + invoke(*words, "0.4").stdout
    (here / "out.jsonl").unlink()
    (here / "out.jsonl").write_text("mine")
    assert "out-2.jsonl (out.jsonl is kept:" in invoke(*words, "0.5").stdout


def test_model_given_as_a_source_is_refused(here: Path) -> None:
    (here / "x.pt").touch()
    assert "--model x.pt" in invoke("in.mp4", "x.pt").stderr


def test_pictures_are_not_written_into_a_folder_being_read(here: Path) -> None:
    os.rename(here / "photos", here / "in-null-detected")
    before = tree(here)
    save = ("--save", "pictures", "--calibrate", "in-null-detected")
    assert run("in.mp4", *NULL, *save) == 0
    assert (here / "in-null-detected-2").is_dir()
    assert tree(here).items() >= before.items()


# The session


def session(folder: Path, *more: str) -> Path:
    assert run("in.mp4", *NULL, "--no-video", "--save", "csv", "--run-dir", folder, *more) == 0
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", ["session.json", "summary.json", "detections.jsonl", "spans.npz"])
def test_report_does_not_overwrite_the_session(here: Path, name: str) -> None:
    run_dir = session(here / "r")
    before = tree(run_dir)
    for kind in ("html", "json", "trace"):
        assert run("report", "r", "--format", kind, "-o", f"r/{name}") == 2
    assert tree(run_dir) == before
    assert run("report", "r", "--format", "json") == 0
    assert run("report", "r", "--format", "json", "-o", "r/profile.json") == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["session.json", "detections.jsonl"])
def test_output_that_is_a_session_file_is_refused(here: Path, name: str) -> None:
    assert run("in.mp4", *NULL, "--run-dir", "o", "-o", f"o/{name}") == 2
    assert not (here / "o").exists()
    run_dir = session(here / "o")
    before = {path: data for path, data in tree(run_dir).items() if path != LIST}
    assert run("in.mp4", *NULL, "--run-dir", "o", "-o", f"o/{name}") == 2
    assert run("in.mp4", *NULL, "-o", "o/session.json", "--run-dir", "./o/../o") == 2
    assert {path: data for path, data in tree(run_dir).items() if path != LIST} == before


FOREIGN = "session.json summary.json detections.jsonl error.log source-0.jsonl"


@pytest.mark.parametrize("name", [*FOREIGN.split(), "passes/mine.json", "passes/notes.txt"])
def test_run_dir_with_foreign_session_files_is_refused(here: Path, name: str) -> None:
    (here / "o/passes").mkdir(parents=True)
    (here / "o" / name).write_text('{"mine": true}')
    before = tree(here)
    assert run("in.mp4", *NULL, "--run-dir", "o") == 6
    assert tree(here) == before


@pytest.mark.slow
def test_run_dir_with_other_files_can_be_reused(here: Path) -> None:
    (here / "o").mkdir()
    (here / "o/thesis.txt").write_text("precious")
    session(here / "o")
    assert run("report", "o") == 0
    assert (here / "o/report.html").exists()
    session(here / "o")
    assert (here / "o/thesis.txt").read_text() == "precious"
    assert not (here / "o/report.html").exists(), "the report of the earlier run is removed"
    # A user's file with one of our names is kept, even if the user creates it after the run.
    (here / "o/report.html").write_text("mine")
    assert run("report", "o") == 6
    assert (here / "o/report.html").read_text() == "mine"
    (here / "o/error.log").write_text("mine")
    assert run("in.mp4", *NULL, "--run-dir", "o") == 6
    assert (here / "o/error.log").read_text() == "mine"


@pytest.mark.slow
def test_session_without_its_list_of_files_is_not_replaced(here: Path) -> None:
    run_dir = session(here / "o")
    (run_dir / LIST).unlink()
    before = tree(run_dir)
    assert run("in.mp4", *NULL, "--run-dir", "o") == 6
    assert tree(run_dir) == before


def test_failed_start_keeps_the_earlier_session(here: Path) -> None:
    run_dir = session(here / "o")
    before = {path: data for path, data in tree(run_dir).items() if path != LIST}
    assert run("absent.mp4", *NULL, "--run-dir", "o") == 3
    (here / "text.mp4").write_text("no video")
    assert run("text.mp4", *NULL, "--run-dir", "o") == 3
    assert {path: data for path, data in tree(run_dir).items() if path != LIST} == before


@pytest.mark.slow
def test_forged_list_of_files_removes_nothing_outside_the_session(here: Path) -> None:
    run_dir = session(here / "o")
    (here / "away").mkdir()
    (here / "away/a.json").write_text("precious")
    (here / "precious").write_text("precious")
    (run_dir / "passes").symlink_to(here / "away")
    with (run_dir / LIST).open("a") as file:
        file.write(f"../precious\n{here}/precious\npasses/a.json\n")
    run("in.mp4", *NULL, "--run-dir", "o")
    assert (here / "precious").exists()
    assert (here / "away/a.json").exists()


def test_eval_does_not_overwrite_the_detections(here: Path) -> None:
    pytest.importorskip("faster_coco_eval", reason="machine: faster-coco-eval is not installed")
    run_dir = session(here / "r")
    before = tree(run_dir)["detections.jsonl"]
    words = ("eval", "labels.json", "--detections", "r/detections.jsonl", "--run-dir", "r")
    assert run(*words) in (2, 3)  # 3: eval sees first that the detections are of another clip
    assert tree(run_dir)["detections.jsonl"] == before


@pytest.mark.slow
@pytest.mark.parametrize("name", ["evaluation.json", "session.json", "summary.json"])
def test_session_does_not_overwrite_the_labels(here: Path, name: str) -> None:
    (here / "o").mkdir()
    for picture_file in ("a.jpg", "b.jpg"):
        os.rename(here / picture_file, here / "o" / picture_file)
    os.rename(here / "labels.json", here / "o" / name)
    before = tree(here)
    assert run("eval", f"o/{name}", *NULL, "--run-dir", "o") in (2, 6)
    assert tree(here) == before
    os.symlink(name, here / "o/link.json")
    assert run("eval", "o/link.json", *NULL, "--run-dir", "o") in (2, 6)
    assert tree(here).items() >= before.items()


# Paths that are not plain files


@pytest.mark.slow
def test_dev_null_as_output_writes_nothing(here: Path) -> None:
    null = Path("n.mp4")
    null.symlink_to(os.devnull)
    for output in (os.devnull, "n.mp4"):
        assert run("in.mp4", *NULL, "-o", output, "--run-dir", "o") == 0
        assert run(*BUILD, "-o", output) == 0
    assert run("report", "o", "-o", os.devnull) == 0
    assert run("report", "o", "--format", "csv", "-o", os.devnull) == 0
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)
    assert null.is_symlink()
    assert len((here / "o/detections.jsonl").read_text().splitlines()) == 3
    assert not list(here.glob("*detected*"))


def test_output_to_a_dangling_link_is_written_to_its_target(here: Path) -> None:
    for link, target in (
        ("l.mp4", "there.mp4"),
        ("l.onnx", "there.onnx"),
        ("l.html", "there.html"),
    ):
        os.symlink(target, link)
    assert run("in.mp4", *NULL, "-o", "l.mp4", "--run-dir", "o") == 0
    assert run(*BUILD, "-o", "l.onnx") == 0
    assert run("report", "o", "-o", "l.html") == 0
    for suffix in ("mp4", "onnx", "html"):
        assert Path(f"l.{suffix}").is_symlink()
        assert Path(f"there.{suffix}").is_file()


@pytest.mark.parametrize(
    "output", ["away.mp4", "pipe.mp4", "pipe", "dangling", "plain", "loop.mp4"]
)
def test_unwritable_output_is_refused_before_the_run(here: Path, output: str) -> None:
    os.symlink("nowhere/x.mp4", "away.mp4")
    os.symlink("loop.mp4", "loop.mp4")
    os.symlink("nowhere", "dangling")
    os.mkfifo("pipe.mp4")
    os.mkfifo("pipe")
    Path("plain").write_text("mine")
    before = tree(here)
    assert run("in.mp4", *NULL, "-o", output) == 6
    assert tree(here) == before
    assert not (here / "runs").exists()


@pytest.mark.slow
def test_pipe_or_folder_is_refused_as_an_output_file(here: Path) -> None:
    os.mkfifo("pipe.onnx")
    session(here / "o")
    for output in ("pipe.onnx", "photos"):
        assert run(*BUILD, "-o", output) == 6
        assert run("report", "o", "-o", output) == 6
    assert stat.S_ISFIFO(os.stat("pipe.onnx").st_mode)
