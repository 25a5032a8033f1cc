"""A few fixed cases of the attacks. The other tests here show that each check can fail.

``scripts/attack --minutes 30 --seed N`` is the long run.
"""

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.attacks import guided, long_run
from tests.attacks.case import Case, Kind, Limits, Link, Pipe, read_case
from tests.attacks.inputs import NULL, content
from tests.attacks.kinds import find_all
from tests.attacks.mutate import damage
from tests.attacks.running import Outcome, Server, judge, judge_output, judge_received, snapshot
from tests.attacks.two_servers import BASIC, SECRETS, Received, two_servers
from tests.attacks.visitors import CAMERA, MARK, TOKEN, judge_answer
from tests.conftest import CHECKOUT
from tests.waiting import PATIENCE_S

SEED = 1
# Kind -> number of its cases that the ordinary tests run; 2 for a kind that is not listed.
COUNTS = {
    "cache": 6, "checkpoints": 8, "command lines": 10, "darknet": 10, "nsys files": 5, "onnx": 8,
    "pictures": 4, "safetensors": 8, "saved runs": 5, "texts": 16, "videos": 4, "kills": 4,
    "full disks": 4, "eight at once": 1, "signals": 4,
}  # fmt: skip


@pytest.mark.parametrize("name", ["darknet", "safetensors", "texts", "onnx", "videos"])
def test_equal_seeds_give_equal_cases(name):
    kind = find_all()[name]
    assert [kind.case(3, number) for number in range(4)] == [
        kind.case(3, number) for number in range(4)
    ]
    assert kind.case(3, 0) != kind.case(4, 0)


def test_case_equals_itself_after_saving_and_reading(tmp_path):
    case = Case(
        {
            "a.txt": b"\x00\xff",
            "deep/b.txt": b"",
            "empty/": b"",
            "link": Link("a.txt"),
            "pipe": Pipe(),
        },
        ("detect", "a b", "\udcff"),
        codes=frozenset({0, -9}),
        env={"HOME": None, "LANG": "C"},
        limits=Limits(open_files=9),
        signals=((0.5, 9),),
        closed=(0, 2),
        copies=2,
        one_of=0,
        again=frozenset({0}),
        may_change=frozenset({"a.txt"}),
        modes={"a.txt": 0o400},
        owners={"a.txt": 65534},
        plain_user=True,
        pages={"/a b": b"\xff", "/deep/c": b""},
        wants_login=True,
        visits=((b"GET /\xff", b""), ()),
        digests={"a.txt": "00"},
        says="a word",
    )
    case.save(tmp_path)
    assert read_case(tmp_path) == Case(**{**vars(case), "files": {**case.files, "deep/": b""}})


@pytest.mark.slow
def test_case_that_cannot_be_made_counts_as_a_failure(tmp_path):
    message: list[str] = []
    run = long_run.LongRun(0, tmp_path, message.append)
    run.run([Kind("broken", lambda random: [][0], share=1)], float("inf"), 1, most=3)
    assert (run.failed, run.tallies["broken"].cases, len(message)) == (3, 3, 3)


# ---- tests of the checks


GOOD = {"code": 0, "wall_s": 0.1, "cpu_s": 0.1, "memory_mb": 50.0}


def failures(
    root: Path, case: Case, after: Any = None, stderr: bytes = b"", **ran: Any
) -> list[str]:
    for name in ("work", "tmp", "seen", "home"):
        (root / name).mkdir()
    (root / "work/letter.txt").write_text("Dear Ada,\n")
    before = snapshot(root)
    if after is not None:
        after(root / "work")
    one = {**GOOD, **{name: ran.pop(name) for name in list(ran) if name in GOOD}}
    (root / "seen/stdout-0.txt").write_bytes(ran.pop("stdout", b""))
    (root / "seen/stderr-0.txt").write_bytes(stderr)
    outcome = judge(case, {"copies": [one], "hang": False, "left": [], **ran}, before, root)
    return [what for what, _ in outcome.failures]


PLAIN = Case({}, ("in.mp4",))


@pytest.mark.parametrize(
    ("done", "expected"),
    [
        ({}, []),
        ({"code": 1}, ["exit 1"]),
        ({"code": -11}, ["signals"]),
        ({"code": 99}, ["other"]),
        ({"code": -6, "hang": True}, ["hangs"]),
        ({"code": 3}, ["other"]),  # no message on stderr
        ({"code": 3, "stderr": b"detect-video: no\n"}, []),
        ({"code": 3, "stderr": b"detect-video: no\nTraceback (most recent call last)"}, ["other"]),
        ({"stdout": b"a \x1b[2Jb\n"}, ["other"]),
        ({"stdout": "\u202e\n".encode()}, ["other"]),
        ({"stderr": b"\xc2\x9b2J\n"}, ["other"]),
        ({"stdout": "caf\xe9 \u89c6 \u2500\n".encode()}, []),
        ({"stdout": b"\x1f\x8b\x1b"}, []),  # a compressed trace
        ({"memory_mb": 5000.0}, ["limits"]),
        ({"cpu_s": 50.0}, ["limits"]),
        ({"left": ["sleep 100"]}, ["left"]),
    ],
)
def test_exit_codes_and_output_are_judged(tmp_path, done, expected):
    assert failures(tmp_path, PLAIN, **done) == expected


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (lambda work: (work / "letter.txt").write_text("Dear Bob,\n"), ["canary"]),
        (lambda work: (work / "letter.txt").unlink(), ["canary"]),
        (lambda work: (work / "letter.txt").chmod(0o600), ["canary"]),
        (lambda work: (work / "new.json").write_text("{}\n"), []),
        (lambda work: (work / "half.json").write_text('{"a": '), ["half files"]),
        (lambda work: (work / "half.jsonl").write_text('{}\n{"a"'), ["half files"]),
        (lambda work: (work / "half.csv").write_text("a,b\n1"), ["half files"]),
        (lambda work: (work / "half.html").write_text("<!doctype html><p>\n"), ["half files"]),
        (lambda work: (work / "half.txt").write_text("<!doctype html><p>"), ["half files"]),
        (lambda work: (work / "page.csv").write_text("<!doctype html>a,b\nc</html>\n"), []),
        (lambda work: (work / "half-page.csv").write_text("<!doctype html>a,b\nc"), ["half files"]),
        (lambda work: (work / "document.mp4").write_text('{"a": [1]}\n'), []),
        (lambda work: (work / "half-row.jsonl").write_text('{"a": 1}'), ["half files"]),
        (lambda work: (work / "half.mp4").write_bytes(content("in.mp4")[:500]), ["half files"]),
        (lambda work: (work / "x.partial.mp4").write_bytes(b""), ["left"]),
        (lambda work: (work / ".77-session.json").write_bytes(b""), ["left"]),
        (lambda work: (work.parent / "tmp/x").write_bytes(b""), ["left"]),
        (lambda work: (work.parent / "home/.x").write_bytes(b""), ["left"]),
        (lambda work: (work.parent / "tmp/detect-video-runs-x").mkdir(), ["left"]),
        (lambda work: session_elsewhere(work, "session.json", '{"a": 1}\n'), []),
        (lambda work: session_elsewhere(work, "session.json", '{"a'), ["half files"]),
        (lambda work: session_elsewhere(work, ".1-session.json", ""), ["left"]),
    ],
)
def test_changed_and_new_files_are_judged(tmp_path, after, expected):
    assert failures(tmp_path, PLAIN, after) == expected


def session_elsewhere(work, name, text):
    """Write a session below TMPDIR, as a run does if runs/ is not writable."""
    folder = work.parent / "tmp/detect-video-runs-x/in-ort"
    folder.mkdir(parents=True)
    (folder / name).write_text(text)


@pytest.mark.parametrize("secret", SECRETS)
def test_secret_sent_to_the_other_server_is_a_failure(secret):
    received = Received({}, ["GET /\n", f"GET /a?{secret}\n"])
    assert [what for what, _ in judge_received(received)] == ["secrets"]
    assert judge_received(Received({}, ["GET /\n"])) == []


@pytest.mark.net
def test_two_servers_record_requests_and_may_redirect_or_refuse_them():
    pages = {"/a": b"to {other}", "/away": b"->http://{other}/a"}
    with two_servers(pages, wants_login=True) as received:
        own, other = received.places["own"], received.places["other"]
        away = Request(f"http://{own}/away", headers={"Authorization": f"Basic {BASIC}"})
        with urlopen(away, timeout=PATIENCE_S) as answer:  # urllib sends the login to both
            assert answer.read() == f"to {other}".encode()
        with pytest.raises(HTTPError, match="401") as refused:
            urlopen(f"http://{own}/a", timeout=PATIENCE_S)
        refused.value.close()
    assert len(received.other) == len(received.with_secrets()) == 1


@pytest.mark.parametrize(
    ("answer", "locked", "expected"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\nok\nHTTP/1.1 503 x\r\n", True, []),
        (b"HTTP/1.1 200 OK\r\nHTTP/1.1 500 Internal Server Error\r\n", True, ["other"]),
        (b"HTTP/1.1 404 x\r\n\r\n/root/of/it/work/live", True, ["secrets"]),
        (b"HTTP/1.1 200 OK\r\n\r\nroot:x:0:0", False, ["secrets"]),
        (CAMERA, True, ["secrets"]),
        (CAMERA, False, []),
    ],
)
def test_replies_of_the_page_are_judged(answer, locked, expected):
    failures = judge_answer((b"GET /",), answer, Path("/root/of/it"), locked)
    assert [what for what, _ in failures] == expected
    known = judge_answer((TOKEN.encode(),), CAMERA, Path("/root/of/it"), locked=True)
    assert list(known) == []


def test_output_that_shows_a_visitors_bytes_or_a_page_error_is_a_failure():
    for text, expected in ((MARK, ["other"]), (b"error in the page: x", ["other"]), (b"hm", [])):
        outcome = Outcome([143], stdout=[b""], stderr=[text])
        assert [what for what, _ in judge_output(outcome)] == expected


ABC = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # sha256 of "abc"


@pytest.mark.parametrize(
    ("case", "after", "ran", "expected"),
    [
        ({"digests": {"rows": ABC}}, lambda work: (work / "rows").write_text("abc"), {}, []),
        ({"digests": {"rows": ABC}}, lambda work: (work / "rows").write_text("abd"), {}, ["other"]),
        ({"digests": {"rows": ABC}}, None, {}, ["other"]),
        ({"says": "not used"}, None, {"stderr": b"x: not used\n"}, []),
        ({"says": "not used"}, None, {}, ["other"]),
        ({"argv": ("in.mp4", "--json")}, None, {"stdout": b"[1, 2\n"}, ["other"]),
        (  # a killed run may leave a partial file
            {"codes": frozenset({-9}), "signals": ((0.1, 9),)},
            lambda work: (work / "x.partial.mp4").write_bytes(b""),
            {"code": -9},
            [],
        ),
    ],
)
def test_expectations_of_a_case_are_judged(tmp_path, case, after, ran, expected):
    assert failures(tmp_path, replace(PLAIN, **case), after, **ran) == expected


LEAVES_A_PROCESS = """
import os, time
from tests.attacks import server
from tests.processes import children_of
server.GRACE_S = 0.2
server._libc.prctl(server.SUBREAPER, 1)
if os.fork() == 0:
    if os.fork() == 0:
        time.sleep(60)
    os._exit(0)
os.wait()
print(len(server.collect_left()), len(children_of(os.getpid())))
"""


def test_remaining_process_is_named_and_killed():
    command = [sys.executable, "-c", LEAVES_A_PROCESS]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "0"]


@pytest.mark.slow
@pytest.mark.parametrize("name", guided.READERS)
def test_guided_reader_accepts_seeds_and_handles_damage(name, tmp_path):
    read, random = guided.READERS[name].prepare(tmp_path), Random(name)
    for seed in guided.READERS[name].seeds():
        read(seed)
        for _ in range(12):
            read(damage(random, seed))


# ---- cases on a server


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with Server(tmp_path_factory.mktemp("server")) as one:
        yield one


@pytest.mark.slow
def test_run_beyond_its_time_limit_is_a_hang(server):
    files = {"long.mp4": content("long.mp4"), "dots.onnx": content("dots.onnx")}
    endless = Case(files, ("long.mp4", "--loop", *NULL), limits=Limits(wall_s=0.02))
    outcome = server.run(endless)
    assert [what for what, _ in outcome.failures][:1] == ["hangs"]
    assert outcome.codes == [-signal.SIGABRT]


@pytest.mark.slow
def test_kept_case_fails_again_in_the_same_way(tmp_path, server):
    case = Case({"a.txt": b"x"}, ("a.txt",), codes=frozenset({99}))
    outcome = server.run(case)
    long_run.keep(tmp_path / "kept", case, outcome, {"kind": "made"})
    again = server.run(read_case(tmp_path / "kept"))
    assert outcome.failures
    assert (again.codes, again.failures) == (outcome.codes, outcome.failures)


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, pytest.param(10, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("name", sorted(name for name in find_all() if COUNTS.get(name, 2)))
def test_a_few_cases_of_each_kind_pass(server, name, times):
    kind = find_all()[name]
    failures = []
    for number in range(times * COUNTS.get(name, 2)):
        outcome = server.run(kind.case(SEED, number))
        failures += [f"case {number}: {what}: {text}" for what, text in outcome.failures]
    assert failures == []
