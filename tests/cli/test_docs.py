"""The documents are correct: every command line of README and of the usage pages runs as written,
every link works, and numbers equal those in the code.

A hidden comment after a number names its place in the code:
``64 <!-- = detector.core.errors.parsing:MAX_DEPTH -->``. The number may have a unit. The name may
end with ``.attribute`` or ``[key]``, and a factor may follow it:
``512 MB <!-- = detector.lab.profile.stand_ins:MAX_BYTES / 2**20 -->``.
"""

import importlib
import json
import math
import re
import shlex
from pathlib import Path

import cv2
import pytest

from detector.core import errors, sinks, wings
from detector.core.cli.group import command_names
from detector.core.config.elsewhere import HABITS, WORDS
from detector.lab.profile import list_passes
from tests.checkpoints import random_checkpoint
from tests.cli.command import detect_video, run_ok
from tests.cli.small import write_network
from tests.conftest import CHECKOUT, night
from tests.lab.profile.budgets import with_short_budgets
from tests.live.servers import http

SMALL = ("--size", "160x96")  # for commands that infer many times and accept any size
# Options that make a documented command quick. ``detect`` gets --frames, and commands that are not
# listed here get no option.
SHORTER = {
    "doctor": [],
    "build": [],
    "eval": [],
    "compare": ["--frames", 2, "--rounds", 1, *SMALL],
    "tune": ["--seconds", 1, *SMALL],
    "profile": [
        *("--frames", 8, "--only", "critical_path,what_if", "--what-if-seconds", 1, "--json"),
        *SMALL,
    ],
    "batch": ["--frames", 2, "--quiet"],
}

PICTURES = 8  # size of the data set

PAGES_WITH_COMMANDS = ("README.md", "docs/usage.md", "docs/compare.md", "docs/reading.md")


def command_lines():
    for page in PAGES_WITH_COMMANDS:
        for block in re.findall(
            r"^```\w*\n(.*?)^```", (CHECKOUT / page).read_text(encoding="utf-8"), re.S | re.M
        ):
            for line in block.splitlines():
                if line.startswith("detect-video ") and "[OPTIONS]" not in line:
                    yield line.split("#")[0].strip()


ALL = list(dict.fromkeys(command_lines()))  # without repeats
CAMERA_LINES = [line for line in ALL if re.search(r"rtsp://|cameras\.yaml|--loop", line)]
LINES = [line for line in ALL if line not in CAMERA_LINES]
# These commands spend seconds on measuring and have their own tests. Only nightly tests run these
# lines; other test runs just parse the options.
LONG = [line for line in LINES if line.split()[1] in ("compare", "doctor", "profile", "tune")]


def test_documents_contain_command_lines():
    assert len(LINES) >= 20  # fewer if a closing fence was taken for an opening one
    assert len(CAMERA_LINES) >= 5


@pytest.fixture(scope="module")
def material(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("material")
    (folder / "in.mp4").symlink_to(CHECKOUT / "videos/street.mp4")
    for name in ("videos", "archive"):
        (folder / name).symlink_to(CHECKOUT / "videos")
    write_network(folder)
    (folder / "x.names").write_text("person\nvehicle\n")
    labels = json.loads((CHECKOUT / "videos/street.json").read_text(encoding="utf-8"))
    labels["categories"][1]["name"] = "car"  # as in COCO
    labels["images"] = labels["images"][:PICTURES]
    kept = {one["id"] for one in labels["images"]}
    labels["annotations"] = [one for one in labels["annotations"] if one["image_id"] in kept]
    capture = cv2.VideoCapture(str(folder / "in.mp4"))
    for name in ("shots", "val"):
        (folder / name).mkdir()
    for number, image in enumerate(labels["images"]):
        image["file_name"] = f"{number:03d}.jpg"
        picture = capture.read()[1]
        for name in ("shots", "val"):
            cv2.imwrite(f"{folder}/{name}/{image['file_name']}", picture)
    (folder / "val.json").write_text(json.dumps(labels), encoding="utf-8")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("line", [night(line) if line in LONG else line for line in LINES])
def test_documented_command_line_runs(material, tmp_path, line):
    for path in material.iterdir():
        (tmp_path / path.name).symlink_to(path)
    for name in re.findall(r"\w+\.pt\b", line):
        random_checkpoint(tmp_path / name)
    words = shlex.split(line)[1:]
    others = set(command_names()) - {"detect", *SHORTER}  # these commands are quick without options
    short = [] if words[0] in others else SHORTER.get(words[0], ["--frames", 2])
    if "--target" in words:  # choose a target that a busy machine reaches
        short = [*short, "--target", 1]
    if words[0] == "report":  # it reports on a run that an earlier command of the page made
        run_ok("in.mp4", "--frames", 2, "--run-dir", words[1], cwd=tmp_path)
    if words[0] == "batch" and {"--resume", "--status"} & set(words):
        run_ok("batch", "videos", "-o", "out", *short, cwd=tmp_path)
    env = with_short_budgets(tmp_path) if words[0] in ("profile", "compare") else None
    process = run_ok(*words, *short, cwd=tmp_path, env=env)
    assert process.stderr == ""


@pytest.mark.parametrize("line", LONG)
def test_documented_options_are_valid(line):
    name, *words = shlex.split(line)[1:]
    assert importlib.import_module(wings.commands()[name]).command.make_context(name, words).params


@pytest.mark.slow
@pytest.mark.net
@pytest.mark.parametrize("line", CAMERA_LINES)
def test_documented_camera_command_runs(tmp_path, line):
    """Replace the camera by a local one and stop after three pictures."""
    (tmp_path / "videos").symlink_to(CHECKOUT / "videos")
    with http() as server:
        camera = {"name": "door", "url": server.url("/mjpeg")}
        (tmp_path / "cameras.yaml").write_text(json.dumps({"cameras": [camera]}))
        line = re.sub(r"rtsp://\S+", camera["url"], line)
        line = re.sub(r"https://host/\S*", server.url("/hook"), line).replace("8080", "0")
        process = detect_video(*shlex.split(line)[1:], "--frames", 3, cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    (rows,) = tmp_path.glob("live/*/detections-*.jsonl")
    assert rows.read_text().count("\n") > 1


PAGES = sorted(
    page
    for folder, pattern in ((".", "*.md"), ("docs", "**/*.md"), ("deploy", "**/*.md"))
    for page in (CHECKOUT / folder).glob(pattern)
)


def anchors(markdown: str) -> set[str]:
    """Return GitHub's anchors of the headings: lower case, no punctuation, ``-`` for a space."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ +(.*)$", without_code_blocks(markdown), re.M):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        name = re.sub(r"[^\w -]", "", words).replace(" ", "-")
        again = sum(one == name or re.fullmatch(rf"{name}-\d+", one) is not None for one in found)
        found.add(f"{name}-{again}" if again else name)
    return found


def without_code_blocks(markdown: str) -> str:
    return re.sub(r"^```.*?^```", "", markdown, flags=re.S | re.M)


def dead_links(page: Path) -> list[str]:
    dead = []
    text = without_code_blocks(page.read_text(encoding="utf-8"))
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if re.match(r"[a-z]+:", link):  # links to the web are not checked
            continue
        if not target.exists() or (
            anchor and anchor not in anchors(target.read_text(encoding="utf-8"))
        ):
            dead.append(link)
    return dead


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(CHECKOUT)))
def test_links_have_a_target(page):
    assert dead_links(page) == []


def test_dead_link_is_detected(tmp_path):
    (tmp_path / "there.md").write_text("# The `--size` of it\n## Twice\n## Twice\n")
    page = tmp_path / "page.md"
    links = "there.md", "there.md#the---size-of-it", "there.md#twice-1", "#here", "https://x.y/z"
    page.write_text("## Here\n" + " ".join(f"[x]({link})" for link in links))
    assert dead_links(page) == []
    page.write_text("```\n# Here\n```\n[x](gone.md) [x](there.md#twice-2) [x](#here)")
    assert dead_links(page) == ["gone.md", "there.md#twice-2", "#here"]


NAMED = re.compile(
    r"(?<![\w/.-])((?:scripts|tests|detector|cfg|training|deploy|core|lab|live|batch)/[\w./*-]*\w)"
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(CHECKOUT)))
def test_named_files_exist(page):
    """Look in the checkout and in ``detector/``. Names with words in capitals are placeholders."""
    found = NAMED.findall(page.read_text(encoding="utf-8"))
    named = {name for name in found if not re.search("[A-Z]{3,}|[*]", name)}
    roots = (CHECKOUT, CHECKOUT / "detector")
    assert [name for name in sorted(named) if not any((at / name).exists() for at in roots)] == []


def first_column(page: str, heading: str) -> list[str]:
    """Return the words in the first column of the first table below a heading."""
    text = (CHECKOUT / page).read_text(encoding="utf-8").partition(f"{heading}\n")[2]
    rows = re.search(r"(?:^\|.*\n)+", text, re.M)[0].splitlines()[2:]
    cells = [row.split("|")[1] for row in rows]
    return [name for cell in cells for name in re.findall(r"\w+", cell)]


def test_tables_list_all_exit_codes_outputs_and_passes():
    codes = {value for name, value in vars(errors).items() if name.startswith("EXIT_")}
    assert {int(code) for code in first_column("docs/usage.md", "## Exit codes")} == codes
    assert set(first_column("docs/usage.md", "## Outputs")) == set(sinks.names())
    assert set(first_column("docs/reading.md", "and its tables")) == set(list_passes())


def test_ultralytics_table_agrees_with_the_hints_for_foreign_options():
    text = (CHECKOUT / "docs/usage.md").read_text(encoding="utf-8")
    _, _, section = text.partition("## Coming from ultralytics")
    rows = re.findall(r"^\| (`.*) \| (`.*) \|$", section.partition("\n## ")[0], re.M)
    assert len(rows) >= 10
    for row in rows[1:]:  # the first row is about the source, which has no option
        theirs, ours = (re.findall("`([^`]+)`", cell) for cell in row)
        answers = [(HABITS | WORDS)[word].split(",")[0].split(" for ")[0] for word in theirs]
        assert set(answers) == set(ours), row


STATED = re.compile(
    r"(?P<number>\d[\d,]*(?:\.\d+)?(?:\^\d+)?)(?:\s*%|\s+[A-Za-z]+)?\s*"
    r"<!-- = (?P<module>[\w.]+):(?P<path>[\w.\[\]]+)"
    r"(?: (?P<sign>[*/]) (?P<factor>\d+(?:\*\*\d+)?))? -->"
)


def plain(text: str) -> float:
    base, _, power = text.replace(",", "").replace("**", "^").partition("^")
    return float(base) ** float(power or 1)


def value_in_code(module: str, path: str) -> object:
    """Return the value of ``NAME``, ``NAME.attribute`` or ``NAME[key]``. A class of options is
    instantiated with its defaults."""
    value = importlib.import_module(module)
    for key, name in re.findall(r"\[(\w+)\]|(\w+)", path):
        value = value[int(key) if key.isdigit() else key] if key else getattr(value, name)
        value = value() if isinstance(value, type) else value
    return value


def wrong_numbers(text: str) -> list[str]:
    wrong = []
    for found in STATED.finditer(text):
        value = float(value_in_code(found["module"], found["path"]))
        if found["sign"]:
            factor = plain(found["factor"])
            value = value * factor if found["sign"] == "*" else value / factor
        if not math.isclose(value, plain(found["number"])):
            wrong.append(f"{found['number']} is {value:g}: {found['module']}:{found['path']}")
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(CHECKOUT)))
def test_stated_numbers_in_docs_equal_the_code(page):
    text = page.read_text(encoding="utf-8")
    assert re.findall("<!-- =.*", STATED.sub("", text)) == []  # a number precedes each comment
    assert wrong_numbers(text) == []


def test_many_numbers_are_compared_with_the_code():
    texts = [page.read_text(encoding="utf-8") for page in PAGES]
    assert sum(len(STATED.findall(text)) for text in texts) >= 80


def test_wrong_number_is_detected():
    parsing = "<!-- = detector.core.errors.parsing"
    assert wrong_numbers(f"64 levels {parsing}:MAX_DEPTH --> and 2^63\n{parsing}:LARGEST -->") == []
    assert len(wrong_numbers(f"63 {parsing}:MAX_DEPTH -->, 128 {parsing}:MAX_DEPTH / 2 -->")) == 2
    with pytest.raises(AttributeError):
        wrong_numbers(f"64 {parsing}:NO_SUCH_LIMIT -->")
