"""`veil export`: one file that does what torch does, without torch; and what is refused."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from safetensors.torch import save_file

import clips
from conftest import veil
from errors import refuses
from small_runs import RECIPES, whole
from veil.apps.demo import sample
from veil.apps.export import write
from veil.apps.export.adapters import ExportableAdapter
from veil.apps.export.anonymizers import ExportableAnonymizer
from veil.apps.export.write import export
from veil.features import registry
from veil.features.adapter import Adapter, NetworkAdapter
from veil.features.bank import Bank
from veil.features.subspace import SubspaceAdapter
from veil.methods import make, recipes
from veil.methods.builtin import Prototypes
from veil.methods.exported import load, load_adapter
from veil.training import config

NET = {"frames", "ahead"}  # those that have layers


def untrained(name: str, folder: Path) -> Path:
    """A run with an untrained network."""
    plain = tomllib.loads(RECIPES[name])
    kind = plain.pop("method")
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps({"kind": kind, "recipe": plain}))
    torch.manual_seed(0)
    net = config.checked(plain, recipes.RECIPES[kind], lambda key: key).network()
    if kind == "prototypes":
        net.prototypes = torch.randn(5, 64, 4, 4)
        net.mean, net.deviation = torch.tensor(0.5), torch.tensor(0.2)
    save_file(net.state_dict(), folder / "weights.safetensors")
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    return {name: untrained(name, folder / name) for name in RECIPES}


@pytest.fixture(scope="module")
def prototypes(tmp_path_factory, movie) -> Path:
    path = tmp_path_factory.mktemp("exported") / "prototypes.onnx"
    export("prototypes", path, calibrate=[str(movie)])
    return path


@pytest.fixture(scope="module")
def movie(tmp_path_factory) -> Path:
    """Pictures with something in them: a video to compare on."""
    path = tmp_path_factory.mktemp("movie") / "movie.mkv"
    return clips.video(path, list(sample(40, (96, 64))), codec="ffv1", pix_fmt="bgr0")


@pytest.mark.parametrize("name", RECIPES)
def test_a_run_and_its_file_have_the_same_output(name, runs, movie, tmp_path):
    written = export(str(runs[name]), tmp_path / "model.onnx", calibrate=[str(movie)])
    assert written.difference.off <= write.MAX_OUTLIERS and written.difference.largest <= 1
    square = sample(41, (64, 64))
    one, two = (whole(make(str(place)), square) for place in (runs[name], written.path))
    assert np.abs(one.astype(int) - two).max() <= 1
    assert one.std() > 0
    if name not in ("ahead", "blocks"):  # these have one size: other frames are resized to it
        wide = sample(20, (96, 48))
        one, two = (whole(make(str(place)), wide) for place in (runs[name], written.path))
        assert np.abs(one.astype(int) - two).max() <= 1


@pytest.mark.parametrize("name", sorted(NET))
def test_eight_bits_are_smaller_and_nearly_the_same(name, runs, movie, tmp_path):
    written = export(str(runs[name]), tmp_path / "model.onnx", int8=True, calibrate=[str(movie)])
    assert written.int8 is not None
    large, small = written.int8.bytes
    assert small < large and written.path.stat().st_size == pytest.approx(small, abs=4000)
    held = onnx.load(str(written.path))
    assert {"QuantizeLinear", "DequantizeLinear"} <= {node.op_type for node in held.graph.node}
    metadata = load(written.path).metadata
    assert metadata["int8"]["mean"] == pytest.approx(written.int8.difference.mean)
    assert "int8" in "\n".join(written.lines()) and "before" in "\n".join(written.lines())


def test_eight_bits_of_nothing_are_refused(runs, movie, tmp_path):
    with refuses("int8-no-layer"):
        export(str(runs["difference"]), tmp_path / "model.onnx", int8=True, calibrate=[str(movie)])
    assert not list(tmp_path.iterdir())


def test_the_built_in_one_in_torch_is_the_built_in_one(prototypes):
    frames = sample(61, (96, 72))
    assert np.array_equal(whole(load(prototypes), frames), whole(Prototypes(), frames))
    metadata = load(prototypes).metadata
    assert metadata["method"] == "prototypes" and metadata["torch"]["largest"] <= 1
    assert metadata["block"] == 24
    assert make(str(prototypes)).ahead() == Prototypes().ahead() == 35


@pytest.mark.parametrize("lengths", [(1,) * 41, (16, 16, 9), (3, 38)])
def test_windows_make_no_difference(lengths, prototypes):
    frames = sample(41, (64, 48))
    assert np.array_equal(whole(load(prototypes), frames, *lengths), whole(load(prototypes), frames))


def test_what_differs_from_torch_is_not_written(runs, movie, tmp_path, monkeypatch):
    true = ExportableAnonymizer.forward
    monkeypatch.setattr(ExportableAnonymizer, "forward", lambda self, *given: 255 - true(self, *given))
    with refuses("export-differs"):
        export(str(runs["frames"]), tmp_path / "model.onnx", calibrate=[str(movie)])
    assert not list(tmp_path.iterdir())


def adapter(context, neighbours: int, dim: int = 16) -> Adapter:
    torch.manual_seed(0)
    made: Adapter = NetworkAdapter(dim, layers=2, heads=4, context=context, norm=True).eval()
    if neighbours:
        made = SubspaceAdapter(dim, neighbours=neighbours).eval()
    made.mean, made.scale = torch.randn(dim), torch.rand(dim) + 0.5
    made.metadata = torch.tensor(list(b'{"encoder": "gone", "fingerprint": "f"}'), dtype=torch.uint8)
    if isinstance(made, SubspaceAdapter):
        made.fit_references(_bank(dim))
    return made


def _bank(dim: int) -> Bank:
    class Few:
        clips, mask = torch.randn(40, 2, dim), torch.ones(40, 2, dtype=torch.bool)

    return Few()  # type: ignore[return-value]


@pytest.mark.parametrize(("context", "neighbours"), [("clip", 0), ("clip", 3), ("video", 0)])
@pytest.mark.parametrize("int8", [False, True])
def test_an_adapter_and_its_file_change_features_alike(context, neighbours, int8, tmp_path, monkeypatch):
    made = adapter(context, neighbours)
    monkeypatch.setattr(write, "find_exportable", lambda method: ExportableAdapter(made))
    if neighbours and int8:  # k-same is exact
        with refuses("int8-no-layer"):
            export("run", tmp_path / "adapter.onnx", int8=True)
        return
    written = export("run", tmp_path / "adapter.onnx", int8=int8)
    assert "random numbers" in written.compared_on  # the encoder is not installed
    change = load_adapter(written.path)
    for shape in ((1, 1), (5, 3)):
        features = torch.randn(*shape, 16) * made.scale + made.mean
        mask = torch.ones(shape, dtype=torch.bool)
        mask[:, 1:2] = shape == (1, 1)
        with torch.no_grad():
            wanted = made(features, mask if context == "video" else None).numpy()
        found = change(features.numpy(), mask.numpy() if context == "video" else None)
        apart = np.abs(found - wanted)[mask.numpy()] / made.scale.numpy()
        assert apart.mean() < (0.2 if int8 else 1e-4)
    with refuses("features-differ"):
        change(np.zeros((1, 1, 17), np.float32))
    with refuses("model-kind"):
        make(str(written.path))


def test_a_run_of_splavu_is_an_adapter(tmp_path, monkeypatch):
    (tmp_path / "run.json").write_text('{"kind": "splavu", "recipe": {}}')
    monkeypatch.setattr(registry, "load", lambda folder: adapter("clip", 0))
    assert write.find_exportable(str(tmp_path)).kind == "features"


def foreign(path: Path, metadata: dict[str, str]) -> Path:
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", value[:1], value[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    helper.set_model_props(model, metadata)
    path.write_bytes(model.SerializeToString())
    return path


SHAPE = {"side": "64", "skip": "3", "past": "4", "block": "8", "future": "4", "square": "true"}
OURS = {"veil": '"0.1.0"', "kind": '"frames"'}


@pytest.mark.parametrize(
    ("metadata", "code"),
    [
        (None, "model-unreadable"),
        ({}, "model-foreign"),
        ({"veil": "not json"}, "model-foreign"),
        ({"veil": '"0.1.0"', "kind": '"rocket"'}, "model-foreign"),
        ({**OURS, **SHAPE}, "model-inputs"),
    ],
)
def test_a_file_of_others_is_refused(metadata, code, tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(b"garbage") if metadata is None else foreign(path, metadata)
    with refuses(code):
        make(str(path))


@pytest.mark.parametrize("change", [{"skip": 0}, {"block": 10**9}, {"side": "64"}, {"square": None}])
def test_the_metadata_of_a_file_are_checked(change, prototypes, tmp_path):
    model = onnx.load(str(prototypes))
    metadata = {prop.key: prop.value for prop in model.metadata_props}
    helper.set_model_props(model, metadata | {key: json.dumps(value) for key, value in change.items()})
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    with refuses("model-metadata") as refused:
        make(str(path))
    assert next(iter(change)) in str(refused.value)


def test_the_command_line_refuses_in_one_sentence(tmp_path, prototypes):
    bad = tmp_path / "bad.onnx"
    bad.write_bytes(b"no")
    video = clips.video(tmp_path / "in.mp4", clips.pictures(4))
    done = veil("anonymize", video, "-o", tmp_path / "out.mp4", "--with", bad)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and not (tmp_path / "out.mp4").exists()
    for method, name, code in (
        ("blur", "m.onnx", "not-learned"),
        ("prototypes", "m.txt", "output-not-onnx"),
        ("prototypes", prototypes, "output-exists"),
    ):
        with refuses(code):
            export(method, tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.onnx", "in.mp4"]


def test_torch_is_not_loaded(prototypes, tmp_path):
    video = clips.video(tmp_path / "in.mp4", clips.pictures(30))
    code = (
        "import sys\nfrom veil.cli import main\n"
        f"try: main(['anonymize', {str(video)!r}, '-o', {str(tmp_path / 'out.mp4')!r}, '--with', {str(prototypes)!r}])\n"
        "except SystemExit as done: assert done.code == 0, done\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], env=os.environ).returncode == 0
    assert (tmp_path / "out.mp4").is_file()
