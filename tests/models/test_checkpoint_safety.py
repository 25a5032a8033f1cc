"""Reading a checkpoint runs none of its code; dangerous and damaged files are refused."""

import copy
import pickle
import subprocess
import sys
import tarfile
import zipfile
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest

from detector.core.errors import ModelError
from detector.core.models.formats.checkpoint import unpickle
from detector.core.models.formats.checkpoint.archive import Archive
from detector.core.models.formats.checkpoint.contents import contents_of
from tests import networks
from tests.attacks import inputs
from tests.checkpoints import (
    Reduced,
    Stored,
    call,
    foreign,
    module,
    pickled,
    random_checkpoint,
    saved,
    whole_model,
    zipped,
)
from tests.memory import bytes_of


def refusal(path: Path) -> str:
    message = networks.refusal(str(path))
    assert message.startswith(str(path))
    return message


@pytest.mark.parametrize(
    ("package", "name"),
    [
        ("os", "system"),
        ("posix", "system"),
        ("builtins", "eval"),
        ("builtins", "getattr"),
        ("__builtin__", "exec"),
        ("subprocess", "Popen"),
        ("runpy", "run_path"),
        # names in torch through which a pickle could reach other modules
        ("torch", "load"),
        ("torch.storage", "_load_from_bytes"),
        ("torch._utils", "_import_dotted_name"),
        ("torch.nn.modules.module", "warnings.sys.modules"),
        ("torch.nn.modules.container", "operator.attrgetter"),
        ("torch.nn.modules.utils", "import_module"),
        ("torch.nn.modules.rnn", "apply_permutation"),
        ("torch.nn", "Module"),  # a class that no checkpoint names
        ("torch.nn.modules.conv", "Conv2d.register_forward_hook"),
        ("torch.jit", "load"),
        ("numpy", "load"),
        ("numpy.testing._private.utils", "runstring"),
        # names in the networks' own modules
        ("models.common", "os.system"),
        ("models.common", "torch.hub.load"),
        ("models.yolo", "parse_model"),
        ("models.experimental", "attempt_load"),
        ("models", "common"),
        ("utils.general", "check_requirements"),
        ("collections", "namedtuple"),
    ],
)
def test_unlisted_name_is_refused(tmp_path, package, name):
    canary = tmp_path / "ran"
    path = zipped(tmp_path / "x.pt", call(package, name, f"touch {canary}"))
    message = refusal(path)
    assert "refused before " in message
    assert f"{package}.{name}" in message
    assert not canary.exists()


def test_dangerous_names_are_reported_instead_of_a_newer_family(tmp_path):
    content = [foreign("a", f"f{at}") for at in range(5)] + [
        foreign("ultralytics.nn.tasks", "DetectionModel")
    ]
    message = refusal(zipped(tmp_path / "x.pt", pickled(content)[0]))
    assert "a.f0, a.f1, a.f2 and 2 more" in message


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_names_are_found_in_every_protocol(tmp_path, protocol):
    data, _ = pickled(
        [Reduced(foreign("os", "system"), "true"), foreign("os", "system")], protocol=protocol
    )
    assert "names os.system, which" in refusal(zipped(tmp_path / "x.pt", data))


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (b"\x80\x04\x8c\x02os0\x8c\x06system\x8c\x02os\x93.", "names system.os"),
        (b"\x80\x04\x8c\x02os\x8c\x06system2\x93.", "a computed name"),  # doubled by DUP
        (b"\x80\x04\x8c\x02os\x8c\x06system(]0\x93.", "a computed name"),
        (b"\x80\x02(ios\nsystem\n.", "pickle code INST"),
        (b"\x80\x02\x82\x01.", "pickle code EXT1"),
        (b"\x80\x02Pabc\n.", "pickle code PERSID"),
        (b"\x80\x02Nr\xff\xff\xff\x7f.", "memo place 2147483647"),  # a table of 2^31 places
        (b"\x80\x05\x96\xff\xff\xff\xff\xff\xff\x00\x00.", "damaged or forged"),  # 281 TB of bytes
        (b"\x80\x02N", "damaged or forged"),
        (b"", "damaged or forged"),
        (b"\x80\x02}.", "holds no network"),
        (b"\x80\x02NN\x86R.", "damaged or forged"),  # calls None
    ],
)
def test_byte_code_that_torch_never_writes_is_refused(tmp_path, code, reason):
    assert reason in refusal(zipped(tmp_path / "x.pt", code))


def test_unpickler_checks_every_name_again(tmp_path):
    """The unpickler refuses a name even if the check of the byte code has passed it."""
    with Archive(zipped(tmp_path / "x.pt", b"\x80\x02N.")) as archive:
        for data in (
            b"\x80\x02cos\nsystem\n.",
            b"\x80\x04\x8c\x02os\x8c\x06system\x93.",
            b"\x80\x02(ios\nsystem\n.",
        ):
            with pytest.raises(pickle.UnpicklingError, match=r"os\.system is not"):
                unpickle.Unpickler(data, archive).load()


def test_allowed_names_give_our_own_classes(tmp_path):
    """All allowed names except containers are replaced by our classes."""
    names = [(package, name) for package, listed in unpickle.INERT.items() for name in listed]
    names += [("torch", name) for name in unpickle.STORAGES]
    names += [("torch._utils", name) for name in unpickle.REBUILDERS]
    names += [("collections", "OrderedDict")]
    with Archive(zipped(tmp_path / "x.pt", b"\x80\x02N.")) as archive:
        unpickler = unpickle.Unpickler(b"", archive)
        for package, name in names:
            stand_in = unpickler.find_class(package, name)
            kind = stand_in if isinstance(stand_in, type) else type(stand_in)
            assert any(base.__module__.startswith("detector.") for base in kind.__mro__), (
                package,
                name,
            )
    assert set(unpickle.CONTAINERS.values()) == {set, frozenset}


@pytest.mark.parametrize(
    "target",
    [
        foreign("torch._utils", "_rebuild_tensor_v2"),  # a function's defaults
        foreign("models.common", "Conv"),  # a class
        foreign("torch", "HalfStorage"),
        Stored("0", "float16", 1),
        np.zeros(1, np.float16),  # a tensor whose bounds were checked
        foreign("collections", "OrderedDict"),
        set,
    ],
)
def test_pickled_state_for_a_function_class_or_tensor_is_refused(tmp_path, target):
    data, storages = pickled(target)
    forged = data[:-1] + b"}X\x0c\x00\x00\x00__defaults__Nsb."  # BUILD with {"__defaults__": None}
    message = refusal(zipped(tmp_path / "x.pt", forged, {"0": b"\0\0", **storages}))
    assert "damaged or forged" in message


@pytest.mark.parametrize(
    ("offset", "shape", "steps"),
    [
        (0, (3,), (1,)),  # one number too many
        (1, (2,), (1,)),
        (0, (2,), (2,)),
        (-1, (1,), (1,)),
        (0, (2,), (-1,)),
        (0, (2, 2), (1,)),
        (0, (1,), ("x",)),
        (0, (2**50,), (0,)),
        (True, (1,), (1,)),
    ],
)
def test_tensor_that_reaches_beyond_its_storage_is_refused(tmp_path, offset, shape, steps):
    tensor = Reduced(
        foreign("torch._utils", "_rebuild_tensor_v2"),
        Stored("0", "float16", 2),
        offset,
        shape,
        steps,
    )
    data, _ = pickled({"model": {"model.0.conv.weight": tensor}})
    assert "damaged or forged" in refusal(zipped(tmp_path / "x.pt", data, {"0": bytes(4)}))


def test_tensor_stretched_from_one_number_is_not_allocated(tmp_path):
    """Grids may be stored like this, but weights may not. These 2^40 numbers would take 2 TB."""
    tensor = Reduced(
        foreign("torch._utils", "_rebuild_tensor_v2"),
        Stored("0", "float16", 1),
        0,
        (2**20, 2**20),
        (0, 0),
    )
    path = zipped(tmp_path / "x.pt", pickled({"model.0.conv.weight": tensor})[0], {"0": bytes(2)})
    with Archive(path) as archive:
        stretched = contents_of(unpickle.unpickle(archive), "x").tensors["model.0.conv.weight"]
        with pytest.raises(ValueError, match="in a storage of 1"):
            stretched.array()
    object.__setattr__(stretched, "offset", 1)  # it is frozen and was checked when created
    with pytest.raises(ValueError, match="reaches 2 numbers"):
        stretched.array()


@pytest.mark.parametrize(("held", "promised"), [(3, 2), (0, 1), (None, 1)])
def test_storage_of_another_length_is_refused(tmp_path, held, promised):
    data, _ = pickled({"model": {"model.0.conv.weight": Stored("0", "float16", promised)}})
    storages = {} if held is None else {"0": bytes(held)}
    assert "bytes, not" in refusal(zipped(tmp_path / "x.pt", data, storages))


@pytest.mark.slow
def test_module_inside_itself_is_refused(tmp_path):
    top = module("models.yolo.Model")
    top._modules["again"] = top
    assert "inside itself" in refusal(saved(tmp_path / "x.pt", {"model": top}))


@pytest.mark.slow
def test_a_zip_bomb_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "x.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("archive/data.pkl", bytes(64 << 20))
    message = refusal(path)
    assert "'archive/data.pkl'" in message
    assert "for 67108864)" in message
    assert bytes_of(lambda: refusal(path))[1] < 8 << 20


@pytest.mark.slow
def test_entries_that_overlap_are_refused(tmp_path):
    """A thousand entries that share their bytes are a zip bomb, even without compression."""
    path = tmp_path / "x.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as file:
        file.writestr("archive/data.pkl", bytes(100_000))
        for at in range(1000):
            twin = copy.copy(file.filelist[0])
            twin.filename = f"archive/data/{at}"
            file.filelist.append(twin)
    assert "100100000 bytes" in refusal(path)


def test_a_pickle_larger_than_any_network_needs_is_refused(tmp_path):
    assert "data.pkl takes 17 MB" in refusal(zipped(tmp_path / "x.pt", bytes(17 << 20)))


@pytest.mark.parametrize(
    ("start", "message"),
    [
        (b"", "is empty; download it again"),
        (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", "old format (before 1.6)"),
        (b"version https://git-lfs.github.com/spec/v1\n", "is a Git LFS pointer"),
        (b"\n<!DOCTYPE html>", "is a web page"),
        (bytes(1000), "is not a checkpoint"),
        (b"PK\x03\x04", "truncated or damaged"),
    ],
)
def test_file_mistaken_for_a_checkpoint_is_refused(tmp_path, start, message):
    path = tmp_path / "x.pt"
    path.write_bytes(start)
    assert message in refusal(path)


def test_old_tar_format_is_refused_with_a_way_to_convert_it(tmp_path):
    path = tmp_path / "x.pt"
    with tarfile.open(path, "w") as file:
        file.add(__file__, "storages")
    assert "torch.load('x.pt'" in refusal(path)


def test_zip_without_a_checkpoint_is_refused_with_the_reason(tmp_path):
    path = zipped(tmp_path / "x.pt", b"", **{"constants.pkl": b""})
    assert "TorchScript" in refusal(path)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as file:  # like torch.jit.save
        file.writestr("x/code/__torch__/models/yolo.py", "class Model(Module):\n" * 40)
    assert "TorchScript" in refusal(path)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("readme.txt", "x")
    assert "0 entries called data.pkl" in refusal(path)


@pytest.mark.parametrize(
    "name",
    ["ultralytics.nn.tasks.DetectionModel", "ultralytics.yolo.utils.IterableSimpleNamespace"],
)
def test_newer_families_get_advice_to_export(tmp_path, name):
    path = saved(tmp_path / "yolov8n.pt", {"model": module(name)})
    message = refusal(path)
    assert f"({name}: " in message
    assert "model=yolov8n.pt" in message


@pytest.mark.parametrize(("name", "task"), unpickle.TASKS.items())
def test_newer_model_of_another_task_gets_no_advice_to_export(tmp_path, name, task):
    path = saved(tmp_path / "yolo11n-other.pt", {"model": module(f"ultralytics.nn.tasks.{name}")})
    message = refusal(path)
    assert f"'{task}'" in message
    assert "export it with" not in message


def test_newer_family_is_recognised_despite_unknown_layers(tmp_path):
    layers = [module("torch.nn.modules.normalization.LocalResponseNorm")]
    path = saved(
        tmp_path / "rtdetr-l.pt",
        {"model": module("ultralytics.nn.tasks.RTDETRDetectionModel"), "layers": layers},
    )
    message = refusal(path)
    assert "ultralytics.nn.tasks.RTDETRDetectionModel: " in message
    assert "model=rtdetr-l.pt" in message
    alone = refusal(saved(tmp_path / "other.pt", {"layers": layers}))
    assert "torch.nn.modules.normalization.LocalResponseNorm" in alone


def test_a_file_cut_anywhere_is_refused(tmp_path):
    path = random_checkpoint(tmp_path / "yolov5n.pt")
    whole = path.read_bytes()
    for part in (1, 3, 100, 1000, len(whole) // 2, len(whole) - 5000, len(whole) - 1):
        path.write_bytes(whole[:part])
        refusal(path)


def test_a_byte_changed_in_a_storage_is_found_by_the_zips_checksum(tmp_path):
    path = random_checkpoint(tmp_path / "yolov5n.pt")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    assert "truncated or damaged" in refusal(path)


@pytest.mark.slow
def test_damaged_pickles_raise_our_error_or_are_read(tmp_path):
    """Bytes are changed, removed or doubled at random; the checksums are correct."""
    weight = np.ones((4, 3, 1, 1), np.float16)
    conv = module("torch.nn.modules.conv.Conv2d", weight=weight, kernel_size=(1, 1))
    inner = module(
        "torch.nn.modules.container.Sequential", {"0": module("models.common.Conv", {"conv": conv})}
    )
    model = module(
        "models.yolo.Model", {"model": inner}, yaml={"nc": 1}, names=["a"], anchors=weight
    )
    data, storages = pickled({"epoch": -1, "model": model, "opt": OrderedDict(imgsz=640)})
    random = np.random.default_rng(0)
    path, refused = tmp_path / "x.pt", []
    before = set(sys.modules)
    for _ in range(1000):
        broken = bytearray(data)
        for _ in range(random.integers(1, 4)):
            at, many = int(random.integers(len(broken))), int(random.integers(1, 9))
            kind = random.integers(3)
            piece = (
                bytes(random.integers(0, 256, many, np.uint8))
                if kind == 0
                else bytes(broken[at : at + many]) * 2
            )
            broken[at : at + many] = b"" if kind == 1 else piece
        zipped(path, bytes(broken), storages)
        try:
            with Archive(path) as archive:
                contents_of(unpickle.unpickle(archive), str(path))
        except ModelError as error:
            refused.append(str(error))
    assert len(refused) > 500
    assert [message for message in refused if "\n" in message] == []
    assert {
        name
        for name in set(sys.modules) - before
        if name.split(".")[0] in ("models", "torch", "utils")
    } == set()


def imported_for(path: Path) -> str:
    """Open a checkpoint. Return the imported modules of packages that checkpoints name."""
    code = (
        "import sys; from detector.core.models import ModelRequest, open_network; "
        f"print(open_network(ModelRequest({str(path)!r})).parameters, "
        "[m for m in sys.modules "
        "if m.split('.')[0] in ('models', 'torch', 'utils', 'ultralytics')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split(maxsplit=1)[1]


@pytest.mark.slow
def test_modules_named_in_a_pickled_network_are_not_imported(tmp_path):
    model = whole_model(inputs.yolo_tensors(), inputs.YOLO, names=["a", "b"])
    assert imported_for(saved(tmp_path / "x.pt", {"model": model})) == "[]\n"


@pytest.mark.slow
def test_modules_named_in_the_published_file_are_not_imported(shared):
    assert imported_for(shared / "data/weights/yolov5n.pt") == "[]\n"
