"""A built file is used only with proof of its content; otherwise it is built again."""

import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from detector.core.config.schema import Config, RuntimeConfig
from detector.core.engines._built import building, proof, sealing, store
from detector.core.engines._built.building import build_once, export
from detector.core.engines._built.store import Graphs, find_built
from detector.core.models.base import Network
from detector.core.run.prepare import prepare_network
from tests.known_answers import plus_one
from tests.models import exports
from tests.networks import open_network

NOBODY = 65534
UNPROVED = "lacks proof that this account wrote it"
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="machine: only root can change owners")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "detect-video"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "engines"


def another_account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache-of-another"))


# ---- attacks by someone who can write to the folder


def without_weights(content: bytes) -> bytes:
    try:
        model = onnx.load_from_string(content)
    except Exception:  # the plan that ``build`` wrote is not a graph
        return bytes(len(content))
    for tensor in model.graph.initializer:
        tensor.raw_data = bytes(len(tensor.raw_data))
    return model.SerializeToString()


def tamper_file(path: Path) -> None:
    path.write_bytes(without_weights(path.read_bytes()))


def tamper_both(path: Path) -> None:
    """Zero the weights, and put the changed file's digest into the manifest. This once worked."""
    tamper_file(path)
    manifest = store.read_manifest(path)
    manifest |= {"file_sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    path.with_suffix(".json").write_text(json.dumps(manifest))


def tamper_both_without_a_proof(path: Path) -> None:
    tamper_both(path)
    manifest = proof.without_proof(store.read_manifest(path))
    path.with_suffix(".json").write_text(json.dumps(manifest))


def tamper_manifest(path: Path) -> None:
    manifest = store.read_manifest(path) | {"macs": 1, "made_by": "somebody"}
    path.with_suffix(".json").write_text(json.dumps(manifest))


def proof_of_another_type(path: Path) -> None:
    manifest = store.read_manifest(path) | {"proof": ["\u00e9"]}
    path.with_suffix(".json").write_text(json.dumps(manifest))
    tamper_file(path)


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def cut_manifest(path: Path) -> None:
    path.with_suffix(".json").write_text('{"schema": 1')


def no_manifest(path: Path) -> None:
    path.with_suffix(".json").unlink()


def link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def link_manifest(path: Path) -> None:
    link(path.with_suffix(".json"))


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def pipe_for_manifest(path: Path) -> None:
    pipe(path.with_suffix(".json"))


def writable_by_all(path: Path) -> None:
    path.chmod(0o666)


def manifest_writable_by_all(path: Path) -> None:
    path.with_suffix(".json").chmod(0o666)


# Each kind of damage, and words (``|``: or) of the note that reports it.
HARM: dict[Callable[[Path], None], str] = {
    tamper_file: "its content does not match its manifest",
    tamper_both: UNPROVED,
    tamper_both_without_a_proof: UNPROVED,
    proof_of_another_type: UNPROVED,
    cut_short: "its content does not match its manifest",
    cut_manifest: "it has no readable manifest",
    no_manifest: "it has no readable manifest",
    link: "it is a link",
    link_manifest: "is a link|no readable manifest",
    pipe: "not a regular file",
    pipe_for_manifest: "it has no readable manifest",
    writable_by_all: "everyone may write there",
    manifest_writable_by_all: "everyone may write there",
}
harmed = pytest.mark.parametrize("harm", HARM, ids=lambda harm: harm.__name__)


def named(harm: Callable[[Path], None], notes: tuple[str, ...]) -> bool:
    (line,) = notes
    assert ": not used: " in line
    assert line.endswith("; built again")
    return any(words in line for words in HARM[harm].split("|")) and "\n" not in line


# ---- graphs


def find(folder: Path) -> str | None:
    network = plus_one()
    return network.path if Graphs(folder).load(network) else None


@harmed
def test_changed_graph_is_built_again(folder, harm):
    assert find(folder) is None
    path = Path(export(plus_one(), folder).path)
    assert find(folder) == str(path)
    whole = path.read_bytes()
    harm(path)
    assert find(folder) is None
    rebuilt = export(plus_one(), folder)
    assert rebuilt.path == str(path)
    assert path.read_bytes() == whole
    assert not path.is_symlink()
    assert not path.with_suffix(".json").is_symlink()
    assert find(folder) == str(path)
    if harm not in (manifest_writable_by_all, link_manifest):  # these do not change the graph
        assert named(harm, rebuilt.notes)
    assert export(plus_one(), folder) == (str(path), False, ())


def test_changed_manifest_is_written_again(folder):
    path = Path(export(plus_one(), folder).path)
    before = path.with_suffix(".json").read_text()
    tamper_manifest(path)
    assert find(folder) is None
    export(plus_one(), folder)
    assert path.with_suffix(".json").read_text() == before


def test_swapped_graphs_are_built_again(folder):
    one, other = (Path(export(plus_one(batch), folder).path) for batch in (1, 2))
    for suffix in (".onnx", ".json"):
        content = one.with_suffix(suffix).read_bytes()
        one.with_suffix(suffix).write_bytes(other.with_suffix(suffix).read_bytes())
        other.with_suffix(suffix).write_bytes(content)
    assert find(folder) is None
    (line,) = export(plus_one(), folder).notes
    assert UNPROVED in line


def test_renamed_graph_is_not_used(folder):
    path = Path(export(plus_one(), folder).path)
    tamper_both(path)
    digest = store.read_manifest(path)["file_sha256"][: proof.NAME_DIGITS]
    for suffix in (".onnx", ".json"):
        path.with_suffix(suffix).rename(folder / f"plus_one-3x2-b1-{digest}{suffix}")
    assert find(folder) is None
    assert export(plus_one(), folder) == (str(path), True, ())


def test_folder_copied_from_another_account_is_built_again(folder, tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        another_account(patched, tmp_path)
        path = export(plus_one(), tmp_path / "other").path
        tamper_both(Path(path))
        manifest = json.loads(Path(path).with_suffix(".json").read_text())
        sealed = sealing.seal(Path(path).with_suffix(".json").name, manifest)
        Path(path).with_suffix(".json").write_text(json.dumps(sealed))
    shutil.copytree(tmp_path / "other", folder)
    assert find(folder) is None
    (line,) = export(plus_one(), folder).notes
    assert UNPROVED in line


def test_graph_sealed_with_another_key_is_sealed_again_silently(folder, tmp_path, monkeypatch):
    """The file equals a new build, so we trust it: files of older releases remain usable."""
    with monkeypatch.context() as patched:
        another_account(patched, tmp_path)
        export(plus_one(), folder)
    assert find(folder) is None
    assert export(plus_one(), folder).notes == ()
    assert find(folder) is not None


def test_target_of_a_link_is_left_unchanged(folder, tmp_path):
    """A folder unpacked from an archive may contain links to the user's own files."""
    path = Path(export(plus_one(), folder).path)
    for suffix in (".onnx", ".json"):
        mine = tmp_path / f"mine{suffix}"
        mine.write_text("my own")
        path.with_suffix(suffix).unlink()
        path.with_suffix(suffix).symlink_to(mine)
    export(plus_one(), folder)
    assert {(tmp_path / f"mine{suffix}").read_text() for suffix in (".onnx", ".json")} == {"my own"}


def test_changed_separate_weights_are_detected_and_written_again(tmp_path, folder, monkeypatch):
    monkeypatch.setattr(building, "LARGEST_MESSAGE", 5000)
    path = exports.yolox().save(tmp_path / "m.onnx", exports.STATED)

    def opened() -> Network:
        return open_network(path)

    exported = Path(export(opened(), folder).path)
    manifest = store.read_manifest(exported)
    assert proof.why_not(exported, manifest) is None
    (weights,) = folder.glob("*.bin")
    whole = weights.read_bytes()
    weights.write_bytes(bytes(len(whole)))
    assert "its weights" in str(proof.why_not(exported, manifest))
    export(opened(), folder)
    assert weights.read_bytes() == whole


# ---- plans (tests/run/quantize/test_calibration.py does the same with calibrations)


KEY = {"engine": "x", "level": 3}


def build(path: Path) -> dict[str, int]:
    path.write_bytes(b"a plan" * 9)
    return {"layers": 2}


def built(folder: Path, key=KEY):
    return build_once(folder, "m-1x1-b1-x", ".plan", key, build)


def find_plan(folder: Path) -> str | None:
    found = find_built(folder, ".plan", lambda key: key.get("engine") == "x")
    return None if found is None else found.path


@harmed
def test_changed_plan_is_built_again(folder, harm):
    path = Path(built(folder).path)
    assert find_plan(folder) == str(path)
    harm(path)
    assert find_plan(folder) is None
    rebuilt = built(folder)
    assert rebuilt.built
    assert named(harm, rebuilt.notes)
    assert path.read_bytes() == b"a plan" * 9
    assert find_plan(folder) == str(path)
    assert built(folder) == (str(path), False, ())


def test_plan_of_another_key_is_built_again(folder):
    one, other = Path(built(folder).path), Path(built(folder, {**KEY, "level": 4}).path)
    for suffix in (".plan", ".json"):
        one.with_suffix(suffix).write_bytes(other.with_suffix(suffix).read_bytes())
    rebuilt = built(folder)
    assert rebuilt.built
    assert UNPROVED in rebuilt.notes[0]


def test_dangling_link_in_the_folder_is_ignored(folder):
    built(folder)
    (folder / "m-1x1-b1-x-0123456789ab.plan").symlink_to("nowhere")
    assert find_plan(folder) is not None
    assert built(folder, {**KEY, "level": 4}).built


def test_sealed_bytes_are_not_read_if_the_proof_is_missing_or_wrong(folder):
    """TensorRT's timing cache is stored like this."""
    path = folder / "x.timings"
    assert store.read_sealed(path) is None
    building.write_sealed(path, b"times")
    assert store.read_sealed(path) == b"times"
    path.write_bytes(b"tames")
    assert store.read_sealed(path) is None
    building.write_sealed(path, b"times")
    (folder / "x.timings.json").write_text(
        json.dumps({"file_sha256": hashlib.sha256(b"times").hexdigest()})
    )
    assert store.read_sealed(path) is None


# ---- small documents: measured.json, layers


def test_document_of_another_name_or_account_is_not_read(folder, tmp_path, monkeypatch):
    assert store.read_kept(folder, "x.json") is store.why_not_kept(folder, "x.json") is None
    building.rewrite(folder, "x.json", lambda before: b'{"a": 1.5, "b": "\\u00e9"}')
    assert (store.read_kept(folder, "x.json") or {})["a"] == 1.5
    assert store.why_not_kept(folder, "x.json") is None
    (folder / "y.json").write_bytes((folder / "x.json").read_bytes())
    assert store.read_kept(folder, "y.json") is None
    assert UNPROVED in str(store.why_not_kept(folder, "y.json"))
    contents = []
    building.rewrite(folder, "x.json", lambda before: contents.append(before) or b"{}")
    assert contents[0]["b"] == "\u00e9"
    another_account(monkeypatch, tmp_path)
    assert store.read_kept(folder, "x.json") is None
    building.rewrite(folder, "x.json", lambda before: contents.append(before) or b"{}")
    assert contents[1] is None


# ---- the key


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_key_is_made_once_and_is_private(folder, cache):
    assert find(folder) is None
    assert not cache.exists()  # searching writes nothing
    export(plus_one(), folder)
    key = (cache / proof.KEY).read_bytes()
    assert len(key) == proof.KEY_BYTES
    assert (mode(cache / proof.KEY), mode(cache)) == (0o600, 0o700)
    proof.keys.clear()  # from here on the key must be read, as in a new process
    assert find(folder) is not None
    export(plus_one(2), folder)
    assert (cache / proof.KEY).read_bytes() == key
    assert [path.name for path in cache.iterdir()] == [proof.KEY]


@pytest.mark.parametrize(("module", "name"), [(os, "link"), (os.path, "lexists")])
def test_two_runs_that_start_together_use_one_key(folder, cache, monkeypatch, module, name):
    real = getattr(module, name)

    def second(*paths):
        if Path(paths[-1]) == cache / proof.KEY:
            cache_key = cache / "other"
            cache_key.write_bytes(b"f" * proof.KEY_BYTES)
            cache_key.chmod(0o600)
            cache_key.rename(paths[-1])
        return real(*paths)

    monkeypatch.setattr(module, name, second)
    export(plus_one(), folder)
    assert (cache / proof.KEY).read_bytes() == b"f" * proof.KEY_BYTES
    proof.keys.clear()
    assert find(folder) is not None


@pytest.mark.parametrize("spoil", ["open", "short", "link"])
def test_a_key_that_others_could_know_is_replaced(folder, cache, spoil):
    export(plus_one(), folder)
    path = cache / proof.KEY
    before = path.read_bytes()
    if spoil == "open":
        path.chmod(0o644)
    elif spoil == "short":
        path.write_bytes(b"")
    else:
        path.rename(cache / "known")
        path.symlink_to("known")
    proof.keys.clear()
    assert find(folder) is None
    export(plus_one(), folder)
    assert path.read_bytes() != before
    assert (mode(path), path.is_symlink()) == (0o600, False)
    proof.keys.clear()
    assert find(folder) is not None


def test_key_that_cannot_be_stored_safely_gives_a_note(folder, cache):
    cache.mkdir(parents=True)
    cache.chmod(0o777)
    rebuilt = built(folder)
    (line,) = rebuilt.notes
    assert line.startswith(f"{cache / proof.KEY}: cannot store the key")
    assert list(cache.iterdir()) == []
    assert built(folder) == (rebuilt.path, False, ())  # this process still knows what it built


@root_only
def test_a_key_of_another_account_is_neither_used_nor_replaced(folder, cache):
    export(plus_one(), folder)
    os.chown(cache / proof.KEY, NOBODY, NOBODY)
    before = (cache / proof.KEY).read_bytes()
    proof.keys.clear()
    assert find(folder) is None
    export(plus_one(2), folder)
    assert (cache / proof.KEY).read_bytes() == before


# ---- folders and files of other accounts


def choice(folder: Path) -> tuple[Path, str | None]:
    return store.choose_folder(str(folder)), store.why_elsewhere(str(folder))


@pytest.mark.parametrize("rights", [0o1777, 0o707])
def test_world_writable_folder_is_not_used(folder, cache, rights):
    folder.mkdir()
    folder.chmod(rights)
    chosen, line = choice(folder)
    assert chosen == cache / "engines"
    assert line is not None
    assert re.match(rf"{folder}: .* \(mode {rights:04o}\)", line)
    assert str(chosen) in line
    ready = prepare_network(
        plus_one(),
        "null",
        Config(runtime=RuntimeConfig(engine="null", engines_dir=str(folder))),
        lambda concurrency: concurrency,
    )
    assert Path(ready.artefact.path).parent == chosen
    assert ready.notes == (line,)
    assert list(folder.iterdir()) == []


def test_temporary_folder_is_used_if_the_cache_is_world_writable(folder, cache):
    for place in (folder, cache / "engines"):
        place.mkdir(parents=True)
        place.chmod(0o777)
    assert choice(folder)[0] == store.temporary_folder()


@root_only
def test_a_folder_of_another_account_is_not_used(folder, cache):
    folder.mkdir()
    os.chown(folder, NOBODY, NOBODY)
    chosen, line = choice(folder)
    assert chosen == cache / "engines"
    assert " nobody" in str(line)


@root_only
def test_group_writable_folder_is_used_only_if_the_group_is_our_own(folder):
    folder.mkdir()
    folder.chmod(0o775)
    assert choice(folder) == (folder, None)  # root's own group
    os.chown(folder, 0, NOBODY)
    folder.chmod(0o775)
    assert "0775)" in str(choice(folder)[1])


@root_only
def test_files_of_root_need_no_proof(folder, tmp_path, monkeypatch):
    """Root's files, perhaps from an image, are trusted: root could change the program, too."""
    path = Path(export(plus_one(), folder).path)
    for place in (folder, path, path.with_suffix(".json")):
        place.chmod(place.stat().st_mode | 0o055)
    another_account(monkeypatch, tmp_path)
    manifest = store.read_manifest(path)
    assert UNPROVED in str(proof.why_not(path, manifest))
    monkeypatch.setattr(os, "geteuid", lambda: NOBODY)
    assert proof.why_not(path, manifest) is None
    tamper_both(path)  # root's files, too, must match the digest in their name
    assert "to another file" in str(proof.why_not(path, store.read_manifest(path)))
    os.chown(folder, NOBODY, NOBODY)
    assert UNPROVED in str(proof.why_not(path, manifest))


# ---- what other accounts may read


def test_built_files_are_private_whatever_the_umask(folder):
    before = os.umask(0)
    try:
        export(plus_one(), folder / "new")
        built(folder / "new")
        building.rewrite(folder / "new", "x.json", lambda before: b"{}")
        building.write_sealed(folder / "new" / "x.timings", b"x")
    finally:
        os.umask(before)
    assert {mode(path) for path in (folder, folder / "new")} == {0o700}
    assert {mode(path) for path in (folder / "new").iterdir()} == {0o600}
    assert len(list((folder / "new").iterdir())) == 8


def test_key_is_synced_to_the_disk_before_it_gets_its_name(tmp_path, monkeypatch):
    """If a power loss truncated the key, every file would have to be built again."""
    events = []
    fsync, link = os.fsync, os.link

    def synced(file):
        fsync(file)
        path = f"/proc/self/fd/{file}"
        events.append(os.path.getsize(path) if os.path.isfile(path) else "a folder")

    def linked(source, target):
        link(source, target)
        events.append("named")

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "link", linked)
    assert sealing._keep(tmp_path / "a" / "key", b"k" * proof.KEY_BYTES) == b"k" * proof.KEY_BYTES
    assert events == [proof.KEY_BYTES, "named", "a folder"]
