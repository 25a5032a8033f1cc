"""Every pass measures the run's own settings, whatever ``auto`` chose there, and says so.

No test names an engine. What ``tune --use`` kept decides engine, precision, threads, requests,
batch, queue and encoding. A hook in ``engines.open`` records what each process then opens, so a
new pass in the folder is checked without a change here.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from dataclasses import replace

import pytest

from detector.core import engines
from detector.core.config.levels import resolve_config
from detector.core.config.schema import PACKAGED, Config
from detector.core.errors.machine import NotHereError
from detector.core.run import measurements
from detector.core.run.reading import SourceReading
from detector.core.session.measured import Interval, MeasuredCalibration
from detector.core.session.store import Session
from detector.lab import profile
from detector.lab.profile.base import Occasion, Varies, output_within, pin_choices
from detector.lab.session.passes import Execution
from detector.lab.session.read import SavedSession
from tests.cli.command import detect_video, run_ok
from tests.conftest import CHECKOUT, night
from tests.lab.profile.budgets import with_short_budgets
from tests.networks import need_engine, open_network
from tests.session.documents import document

STREET = CHECKOUT / "videos/street.mp4"
FRAMES = 9  # enough for what-if's larger batch
SIZE = (96, 160)  # height and width: what is measured costs little, and starts do not cost more

# Runs in every process: the command itself, the one under perf, the workers of compare.
SPY = """
import json, os
import detector.core.engines as engines
import detector.lab.profile as profile
import detector.lab.profile.energy as energy
import detector.lab.profile.what_if as what_if
from pathlib import Path

def noting(function):
    def noted(name, network, options, *more, **named):
        if network.name == "peaks":  # what the engine's kernels reach, and no part of the run
            return function(name, network, options, *more, **named)
        line = dict(
            on=os.environ.get("DETECT_VIDEO_TEST_PASS", ""), engine=name,
            precision=options.precision,
            threads=options.threads, concurrency=options.concurrency, requests=options.requests,
            device=options.device, own=dict(options.own), batch=network.batch,
            model_input=[network.input.height, network.input.width], graph=network.precision,
            file=network.path,
        )
        with open({log!r}, "a") as file:
            file.write(json.dumps(line) + chr(10))
        return function(name, network, options, *more, **named)
    return noted

def marking(function):
    def marked(name, one, occasion):
        os.environ["DETECT_VIDEO_TEST_PASS"] = name
        Path({kept!r}).unlink(missing_ok=True)  # the next auto gives another answer
        try:
            return function(name, one, occasion)
        finally:
            del os.environ["DETECT_VIDEO_TEST_PASS"]
    return marked

engines.open, engines.time_layers = noting(engines.open), noting(engines.time_layers)
profile._run_pass = marking(profile._run_pass)
energy.POWERCAP, energy.IDLE_S = Path({powercap!r}), 0.2
what_if.ROUNDS = 1
"""
PERF = f"""#!{sys.executable}
import subprocess, sys
at = sys.argv.index("--")
code = subprocess.call(sys.argv[at + 1:])
with open(sys.argv[sys.argv.index("-o") + 1], "w") as report:
    report.write("1000;;cycles;1;100.00;;\\n2000;;instructions;1;100.00;;\\n")
sys.exit(code)
"""


def spied(place):
    """Environment of a command whose engines are written down, on a computer with counters."""
    env = with_short_budgets(place)
    domain = place / "powercap/intel-rapl:0"
    domain.mkdir(parents=True)
    for name, text in (("name", "package-0"), ("energy_uj", "7"), ("max_energy_range_uj", "99")):
        (domain / name).write_text(text)
    with open(place / "short/sitecustomize.py", "a") as file:
        log, kept = str(place / "opened.jsonl"), str(place / "engines" / measurements.FILE)
        file.write(SPY.format(log=log, kept=kept, powercap=str(place / "powercap")))
    perf = place / "bin/perf"
    perf.parent.mkdir()
    perf.write_text(PERF)
    perf.chmod(0o755)
    return {**env, "PATH": f"{perf.parent}:/usr/bin:/bin"}


def keep_tuned(place, engine, precision):
    """Keep settings as ``tune --use`` does: all that it can find, none at its default."""
    config = resolve_config(None, {"engines_dir": str(place / "engines")})
    options = {
        "engine": engine,
        "precision": precision,
        "threads": 1,
        "concurrency": 2,
        "batch": 2,
        "queue_batches": 3,
        "quality": "fast",
    }
    row = measurements.row(engine, precision, options, 1.0, end_to_end=Interval(2.0, 2.0, 2.0))
    made = measurements.make(
        config,
        "tune",
        [row, row],
        model="street",
        model_sha256=open_network("street").sha256,
        model_input=SIZE,
        rounds=3,
        calibration=MeasuredCalibration(PACKAGED, "minmax", 128, 0.95),
        input_kind=SourceReading.of(config).kind_of(str(STREET)),
    )
    measurements.keep(made, config)


def run_profile(place, engine, precision, *passes):
    need_engine(engine)
    keep_tuned(place, engine, precision)
    done = run_ok(
        *("profile", STREET, "--frames", FRAMES, "--run-dir", "run", "--engines-dir", "engines"),
        *("--what-if-seconds", 1, "--size", "160x96", *passes),
        cwd=place,
        env=spied(place),
        timeout=500,
    )
    opened = defaultdict(list)
    for line in (place / "opened.jsonl").read_text().splitlines():
        one = json.loads(line)
        opened[one["on"]].append(one)
    return place / "run", opened, done.stdout


@pytest.fixture(scope="module")
def profiled(tmp_path_factory):
    first = engines.choose_by_rank()[0]
    other = next(
        (name for name in measurements.TIMED if name != first and engines.usable()[name] is None),
        first,
    )
    return run_profile(tmp_path_factory.mktemp("pinned"), other, "int8", "--moments")


@pytest.fixture(scope="module")
def profiled_torch(tmp_path_factory):
    """A profile with the passes that need torch as the engine."""
    return run_profile(tmp_path_factory.mktemp("torch"), "torch", "fp32", "--only", "torch,device")


def check_pass(name, session, opened):
    run = json.loads((session / "session.json").read_text())
    [plain] = opened[""]
    varies = profile.open_pass(name).varies.fields
    assert not {"engine", "precision", "model_input"} & {*varies}
    for one in opened[name]:
        alone = one["requests"] == 1
        wanted = {
            "engine": run["engine"],
            "precision": run["precision"],
            "threads": run["engine_threads"],
            "concurrency": 1 if alone else run["concurrency"],
            "batch": run["batch"],
            "model_input": run["model_input"],
        }
        assert {key: one[key] for key in wanted if key not in varies} == {
            key: value for key, value in wanted.items() if key not in varies
        }
        assert one["own"] == plain["own"]
        assert one["device"] in ("cpu", plain["device"])
        if "batch" not in varies:
            assert (one["graph"], one["file"]) == (plain["graph"], plain["file"])  # calibration
    record = json.loads((session / f"passes/{name}.json").read_text())
    if record["available"]:
        ran = record["ran"]
        assert ran["execution"]["engine"] == run["engine"]
        again = opened[name] or name == "roofline"  # which is made of the layers
        how = "like the run" if again else "in the run itself"
        assert ran["text"].startswith(f"{run['engine']} {run['precision']}, {how}"), ran["text"]
        assert {*ran["differs_in"]} <= {*varies}
    return record


@pytest.mark.slow
@pytest.mark.timeout(560)
@pytest.mark.parametrize("name", profile.list_passes())
def test_a_pass_measures_what_the_run_was(profiled, name):
    session, opened, shown = profiled
    record = check_pass(name, session, opened)
    lacking = {"torch": "torch's profiler needs --engine torch", "device": "not on an NVIDIA GPU"}
    if name in lacking:
        assert lacking[name] in record["reason"]
        return
    assert record["available"], record["reason"]
    # The report has it, the terminal what differs from the run.
    text = record["ran"]["text"]
    own = text.partition("like the run, ")[2]
    assert not own or f"({own})" in " ".join(shown.split())
    assert text in (session / "report.html").read_text()


@pytest.mark.slow
@pytest.mark.timeout(560)
def test_the_run_was_what_was_kept_and_not_the_default(profiled):
    session, opened, _ = profiled
    run = json.loads((session / "session.json").read_text())
    assert (run["precision"], run["batch"], run["engine_threads"], run["concurrency"]) == (
        "int8",
        2,
        1,
        2,
    )
    assert run["model_input"] == [*SIZE]
    # The passes that run the whole job did open an engine, in this process and in others.
    assert {"loop", "python", "memory", "energy", "counters", "layers", "what_if"} <= {*opened}
    assert len(opened["loop"]) == 2
    assert len(opened["counters"]) == 1


@pytest.mark.slow
@pytest.mark.timeout(560)
@pytest.mark.parametrize(
    "more",
    [("--infer-every", "3"), ("--tiles", "2x1"), night(("--track", "sort"))],
    ids=lambda more: more[0],
)
def test_passes_measure_what_the_run_was_with(tmp_path, more):
    """Pictures, input size, batch and all other options are the run's, and the audit finds no
    error in the session. (--rect has an input size for each picture: profile refuses it.)"""
    asked = ("layers", "python", "memory")
    session, opened, _ = run_profile(tmp_path, "ort", "fp32", "--only", ",".join(asked), *more)
    for name in asked:
        record = check_pass(name, session, opened)
        assert record["available"], record["reason"]
        assert opened[name]
    done = detect_video("audit", session, "--json", cwd=tmp_path)
    told = json.loads(done.stdout)
    assert told["counts"]["error"] == 0, told["findings"]


@pytest.mark.slow
@pytest.mark.timeout(560)
@pytest.mark.parametrize("name", ["torch", "device"])
def test_torchs_own_passes_too(profiled_torch, name):
    session, opened, _ = profiled_torch
    record = check_pass(name, session, opened)
    assert opened[name]
    assert record["available"] == (name == "torch")


# ---- the parts of it, without a run

PLAIN = document(
    engine="openvino",
    precision="int8",
    engine_threads=1,
    concurrency=2,
    batch=1,
    model_input=(352, 608),
)


NOTHING = Varies((), "")
RUN = Execution.of(PLAIN)


def described(folder, varies, *seen):
    session = SavedSession(folder, PLAIN, {})
    occasion = Occasion("", Config(), Session(folder), session, executions=list(seen))
    return occasion.describe_ran(varies)


def test_description_names_what_ran_and_its_differences(tmp_path):
    assert described(tmp_path, NOTHING).text.startswith("openvino int8, ")
    assert described(tmp_path, NOTHING, RUN, RUN).text.endswith(", like the run")
    nothing = SavedSession(tmp_path, replace(PLAIN, engine="null", precision="none"), {})
    shown = Occasion("", Config(), Session(tmp_path), nothing).describe_ran(NOTHING).text
    assert shown == "null, in the run itself"
    sync = Varies(("sync",), "in one plain loop")
    ran = described(tmp_path, sync, replace(RUN, sync=True))
    assert ran.text.endswith(", in one plain loop")
    assert ran.differs_in == ("sync",)
    # A network that ran without a loop has no value for ``sync``.
    assert described(tmp_path, NOTHING, replace(RUN, sync=None)).differs_in == ()
    damaged = replace(RUN, decoder="av")
    session = SavedSession(tmp_path, PLAIN, {})
    occasion = Occasion("", Config(), Session(tmp_path), session, executions=[damaged])
    assert occasion.describe_ran(NOTHING).differs_in == ()  # the run does not tell


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("engine", "ort"),
        ("precision", "fp32"),
        ("threads", 2),
        ("concurrency", 1),
        ("batch", 4),
        ("model_input", (384, 640)),
    ],
)
def test_what_measured_another_thing_gives_no_figures(tmp_path, field, value):
    with pytest.raises(NotHereError, match=field):
        described(tmp_path, Varies(("sync",), ""), RUN, replace(RUN, **{field: value}))


def test_everything_is_pinned():
    decided = resolve_config(None, {"engine": "openvino", "precision": "int8", "batch": 2})
    decided = replace(decided, calibration=replace(decided.calibration, calibrate=PACKAGED))
    pinned = pin_choices(decided, PLAIN, "cpu")
    assert pinned.calibration.calibrate == PACKAGED
    runtime = pinned.runtime
    assert (runtime.engine, runtime.precision) == ("openvino", "int8")
    assert (runtime.threads, runtime.concurrency, runtime.batch) == (1, 2, 2)
    assert (runtime.size, runtime.device) == ("608x352", "cpu")
    assert pin_choices(decided.with_options({"size": "608"}), PLAIN).runtime.size == "608x352"
    # The own input of a model that does not follow the video is the file's.
    own = decided.with_options({"model": "x.onnx", "device": "cuda:1"})
    runtime = pin_choices(own, PLAIN, "cuda:1").runtime
    assert (runtime.size, runtime.device) == (None, "cuda:1")


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (None, "outputs/"),
        ("out/", "outputs/"),
        ("clip.webm", "outputs/clip.webm"),  # VP9, which costs several times what H.264 does
        ("there/rows.jsonl", "outputs/rows.jsonl"),
        ("/dev/null", None),
    ],
)
def test_a_pass_writes_what_the_run_wrote(tmp_path, given, name):
    output = output_within(tmp_path, replace(Config().output, output=given, save=("video",)))
    assert output.output == ("/dev/null" if name is None else f"{tmp_path}/{name}")
    assert (output.run_dir, output.save) == (str(tmp_path / "run"), ("video",))
