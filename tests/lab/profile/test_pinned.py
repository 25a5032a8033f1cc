"""Every pass uses the settings that ``auto`` chose for the run, or names what it changes.

Settings stored by ``tune --use`` decide engine, precision, threads, requests, batch, queue and
encoding. A hook in ``engines.open`` records what each process opens, so this file also checks
passes that are added later.
"""

import json
import sys
from collections import defaultdict
from dataclasses import replace

import pytest

from detector.core import engines
from detector.core.config.levels import resolve_config
from detector.core.config.schema import PACKAGED, Config
from detector.core.engines import _ranking
from detector.core.errors.machine import NotHereError
from detector.core.run import measurements, saving
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

pytestmark = pytest.mark.timeout(560)
STREET = CHECKOUT / "videos/street.mp4"
FRAMES = 9  # enough for what-if's larger batch
SIZE = (96, 160)  # height and width, small to keep the runs short

# This code runs in every process: the command, its run under perf, and workers of ``compare``.
SPY = """
import json, os
import detector.core.engines as engines
import detector.lab.profile as profile
import detector.lab.profile.energy as energy
import detector.lab.profile.what_if as what_if
from pathlib import Path

def noting(function):
    def noted(name, network, options, *more, **named):
        if network.name == "peaks":  # measures the engine's kernels, not the run
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
        Path({kept!r}).unlink(missing_ok=True)  # from now on, auto would choose differently
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


def spying_environment(folder):
    """Return the environment of a command that records its engines and has fake counters."""
    env = with_short_budgets(folder)
    domain = folder / "powercap/intel-rapl:0"
    domain.mkdir(parents=True)
    for name, text in (("name", "package-0"), ("energy_uj", "7"), ("max_energy_range_uj", "99")):
        (domain / name).write_text(text)
    with open(folder / "short/sitecustomize.py", "a") as file:
        log, kept = str(folder / "opened.jsonl"), str(folder / "engines" / measurements.FILE)
        file.write(SPY.format(log=log, kept=kept, powercap=str(folder / "powercap")))
    perf = folder / "bin/perf"
    perf.parent.mkdir()
    perf.write_text(PERF)
    perf.chmod(0o755)
    return {**env, "PATH": f"{perf.parent}:/usr/bin:/bin"}


def keep_tuned(folder, engine, precision):
    """Store settings as ``tune --use`` does. None of them has its default value."""
    config = resolve_config(None, {"engines_dir": str(folder / "engines")})
    options = {
        "engine": engine,
        "precision": precision,
        "threads": 1,
        "concurrency": 2,
        "batch": 2,
        "queue_batches": 3,
        "quality": "fast",
    }
    row = saving.row(engine, precision, options, 1.0, end_to_end=Interval(2.0, 2.0, 2.0))
    tuned = saving.make(
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
    saving.keep(tuned, config)


def run_profile(folder, engine, precision, *passes):
    need_engine(engine)
    keep_tuned(folder, engine, precision)
    done = run_ok(
        *("profile", STREET, "--frames", FRAMES, "--run-dir", "run", "--engines-dir", "engines"),
        *("--what-if-seconds", 1, "--size", "160x96", *passes),
        cwd=folder,
        env=spying_environment(folder),
        timeout=500,
    )
    opened = defaultdict(list)
    for line in (folder / "opened.jsonl").read_text().splitlines():
        one = json.loads(line)
        opened[one["on"]].append(one)
    return folder / "run", opened, done.stdout


@pytest.fixture(scope="module")
def profiled(tmp_path_factory):
    first = _ranking.choose_by_rank()[0]
    other = next(
        (
            name
            for name, reason in engines.why_unusable(*measurements.TIMED).items()
            if name != first and reason is None
        ),
        first,
    )
    return run_profile(tmp_path_factory.mktemp("pinned"), other, "int8", "--moments")


@pytest.fixture(scope="module")
def profiled_torch(tmp_path_factory):
    """Run the passes that need --engine torch."""
    return run_profile(tmp_path_factory.mktemp("torch"), "torch", "fp32", "--only", "torch,device")


def check_pass(name, session, opened):
    run = json.loads((session / "session.json").read_text())
    [plain] = opened[""]
    varies = profile.open_pass(name).varies.fields
    assert not {"engine", "precision", "model_input"} & {*varies}
    for opened_engine in opened[name]:
        alone = opened_engine["requests"] == 1
        expected = {
            "engine": run["engine"],
            "precision": run["precision"],
            "threads": run["engine_threads"],
            "concurrency": 1 if alone else run["concurrency"],
            "batch": run["batch"],
            "model_input": run["model_input"],
        }
        assert {key: opened_engine[key] for key in expected if key not in varies} == {
            key: value for key, value in expected.items() if key not in varies
        }
        assert opened_engine["own"] == plain["own"]
        assert opened_engine["device"] in ("cpu", plain["device"])
        if "batch" not in varies:
            for key in ("graph", "file"):  # these depend on the calibration
                assert opened_engine[key] == plain[key]
    record = json.loads((session / f"passes/{name}.json").read_text())
    if record["available"]:
        ran = record["ran"]
        assert ran["execution"]["engine"] == run["engine"]
        reopened = opened[name] or name == "roofline"  # roofline is computed from the layers
        description = "like the run" if reopened else "in the run itself"
        assert ran["text"].startswith(f"{run['engine']} {run['precision']}, {description}"), ran[
            "text"
        ]
        assert {*ran["differs_in"]} <= {*varies}
    return record


@pytest.mark.slow
@pytest.mark.parametrize("name", profile.list_passes())
def test_pass_measures_the_settings_of_the_run(profiled, name):
    session, opened, shown = profiled
    record = check_pass(name, session, opened)
    unavailable = {
        "torch": "torch's profiler needs --engine torch",
        "device": "not on an NVIDIA GPU",
    }
    if name in unavailable:
        assert unavailable[name] in record["reason"]
        return
    assert record["available"], record["reason"]
    # The report shows the whole text. The terminal shows only the differences from the run.
    text = record["ran"]["text"]
    differences = text.partition("like the run, ")[2]
    assert not differences or f"({differences})" in " ".join(shown.split())
    assert text in (session / "report.html").read_text()


@pytest.mark.slow
def test_run_uses_the_tuned_settings(profiled):
    session, opened, _ = profiled
    run = json.loads((session / "session.json").read_text())
    assert (run["precision"], run["batch"], run["engine_threads"], run["concurrency"]) == (
        "int8",
        2,
        1,
        2,
    )
    assert run["model_input"] == [*SIZE]
    # Each pass that repeats the run has opened an engine, in the command's process or another one.
    assert {"loop", "python", "memory", "energy", "counters", "layers", "what_if"} <= {*opened}
    assert len(opened["loop"]) == 2
    assert len(opened["counters"]) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [("--infer-every", "3"), ("--tiles", "2x1"), night(("--track", "sort"))],
    ids=lambda more: more[0],
)
def test_passes_use_other_options_of_the_run(tmp_path, more):
    """Passes use the run's pictures, input size, batch and other options, and the audit finds no
    error. (Not tested with --rect, which ``profile`` refuses.)"""
    passes = ("layers", "python", "memory")
    session, opened, _ = run_profile(tmp_path, "ort", "fp32", "--only", ",".join(passes), *more)
    for name in passes:
        record = check_pass(name, session, opened)
        assert record["available"], record["reason"]
        assert opened[name]
    done = detect_video("audit", session, "--json", cwd=tmp_path)
    report = json.loads(done.stdout)
    assert report["counts"]["error"] == 0, report["findings"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["torch", "device"])
def test_torch_passes_measure_the_settings_of_the_run(profiled_torch, name):
    session, opened, _ = profiled_torch
    record = check_pass(name, session, opened)
    assert opened[name]
    assert record["available"] == (name == "torch")


# ---- single functions, without a run

PLAIN = document(
    engine="openvino",
    precision="int8",
    engine_threads=1,
    concurrency=2,
    batch=1,
    model_input=(352, 608),
)


NO_DIFFERENCE = Varies((), "")
RUN = Execution.of(PLAIN)


def described(folder, varies, *executions):
    session = SavedSession(folder, PLAIN, {})
    occasion = Occasion("", Config(), Session(folder), session, executions=list(executions))
    return occasion.describe_ran(varies)


def test_description_names_what_ran_and_its_differences(tmp_path):
    assert described(tmp_path, NO_DIFFERENCE).text.startswith("openvino int8, ")
    assert described(tmp_path, NO_DIFFERENCE, RUN, RUN).text.endswith(", like the run")
    nothing = SavedSession(tmp_path, replace(PLAIN, engine="null", precision="none"), {})
    shown = Occasion("", Config(), Session(tmp_path), nothing).describe_ran(NO_DIFFERENCE).text
    assert shown == "null, in the run itself"
    sync = Varies(("sync",), "in one plain loop")
    ran = described(tmp_path, sync, replace(RUN, sync=True))
    assert ran.text.endswith(", in one plain loop")
    assert ran.differs_in == ("sync",)
    # A network that ran without a loop has no value for ``sync``.
    assert described(tmp_path, NO_DIFFERENCE, replace(RUN, sync=None)).differs_in == ()
    damaged = replace(RUN, decoder="av")
    session = SavedSession(tmp_path, PLAIN, {})
    occasion = Occasion("", Config(), Session(tmp_path), session, executions=[damaged])
    assert occasion.describe_ran(NO_DIFFERENCE).differs_in == ()  # the run recorded no decoder


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
def test_pass_with_other_settings_gives_no_figures(tmp_path, field, value):
    with pytest.raises(NotHereError, match=field):
        described(tmp_path, Varies(("sync",), ""), RUN, replace(RUN, **{field: value}))


def test_all_settings_of_the_run_are_pinned_for_passes():
    decided = resolve_config(None, {"engine": "openvino", "precision": "int8", "batch": 2})
    decided = replace(decided, calibration=replace(decided.calibration, calibrate=PACKAGED))
    pinned = pin_choices(decided, PLAIN, "cpu")
    assert pinned.calibration.calibrate == PACKAGED
    runtime = pinned.runtime
    assert (runtime.engine, runtime.precision) == ("openvino", "int8")
    assert (runtime.threads, runtime.concurrency, runtime.batch) == (1, 2, 2)
    assert (runtime.size, runtime.device) == ("608x352", "cpu")
    assert (
        pin_choices(decided.with_options({"precision": "bf16"}), PLAIN).runtime.precision == "bf16"
    )
    runtime = pin_choices(Config(), PLAIN).runtime
    assert (runtime.engine, runtime.precision) == ("openvino", "int8")
    assert pin_choices(decided.with_options({"size": "608"}), PLAIN).runtime.size == "608x352"
    # A model whose input does not follow the video keeps the input size of its file.
    own = decided.with_options({"model": "x.onnx", "device": "cuda:1"})
    runtime = pin_choices(own, PLAIN, "cuda:1").runtime
    assert (runtime.size, runtime.device) == (None, "cuda:1")


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (None, "outputs/"),
        ("out/", "outputs/"),
        ("clip.webm", "outputs/clip.webm"),  # not MP4, which takes a fraction of the time
        ("there/rows.jsonl", "outputs/rows.jsonl"),
        ("/dev/null", None),
    ],
)
def test_pass_writes_the_same_kinds_of_output(tmp_path, given, name):
    output = output_within(tmp_path, replace(Config().output, output=given, save=("video",)))
    assert output.output == ("/dev/null" if name is None else f"{tmp_path}/{name}")
    assert (output.run_dir, output.save) == (str(tmp_path / "run"), ("video",))
