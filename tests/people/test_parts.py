"""The part network: from torch to the ONNX file that is shipped."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from errors import refuses
from veil.nn.tensor_files import write_tensors
from veil.people import parts
from veil.people.part_network import PartNet, export, load_net
from veil.people.parts import GROUPS, PARTS, SHIPPED, Parts, fitted, grouped
from veil.people.pictures import built_in


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[PartNet, Path]:
    torch.manual_seed(0)
    net = PartNet()
    for module in net.modules():  # as after training: statistics that are not those of a beginner
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.uniform_(-0.1, 0.1)  # type: ignore[union-attr]
            module.running_var.uniform_(0.5, 1.5)  # type: ignore[union-attr]
    path = tmp_path_factory.mktemp("net") / "parts.onnx"
    export(net.eval(), path, {"thresholds": {"person": 0.4}})
    return net, path


def test_weights_of_another_network_are_refused(tmp_path: Path):
    write_tensors({"head.weight": torch.zeros(1)}, tmp_path / "other.safetensors", {})
    with refuses("weights-of-another-network"):
        load_net(tmp_path / "other.safetensors")


@pytest.mark.parametrize("shape", [(1, 1), (2, 33), (31, 64), (100, 75)])
def test_network_takes_any_size(shape):
    net = PartNet(width=8, shrink=8).eval()
    with torch.no_grad():
        assert net(torch.rand(2, 3, *shape)).shape == (2, 8, *shape)
        assert net.coarse(torch.rand(1, 3, *shape)).shape == (1, 8, -(-shape[0] // 4), -(-shape[1] // 4))


def test_exported_network_is_the_same_and_small(exported):
    net, path = exported
    shipped = Parts(path)
    assert path.stat().st_size < 5e6
    assert shipped.thresholds == {**dict.fromkeys(GROUPS, 0.5), "person": 0.4}
    for batch, height, width in ((1, 224, 168), (1, 224, 128), (2, 61, 97), (1, 1, 1)):
        images = np.random.default_rng(0).random((batch, 3, height, width), np.float32)
        theirs = torch.from_numpy(np.asarray(shipped.session.run(None, {shipped.input: images})[0]))
        with torch.no_grad():
            ours = net.coarse(torch.from_numpy(images))
        assert ours.shape == theirs.shape
        assert (ours.softmax(1) - theirs.softmax(1)).abs().max() < 5e-3


@pytest.mark.parametrize("shape", [(1, 1), (33, 2), (640, 480), (90, 1000)])
def test_any_image_has_a_map_of_its_size(exported, shape):
    network = Parts(exported[1])
    image = np.random.default_rng(0).integers(0, 256, (*shape, 3), np.uint8)
    before = image.copy()
    probabilities = network(image)
    assert probabilities.dtype == np.float32 and probabilities.shape[0] == len(PARTS)
    assert probabilities.shape[1:] == tuple(side // 4 for side in fitted(*shape)) and np.allclose(
        probabilities.sum(0), 1, atol=1e-5
    )
    saliency = network.maps(image, ["face", "hair"])
    assert saliency.shape == shape and saliency.dtype == np.float32
    assert saliency.min() >= 0 and saliency.max() <= 1 + 1e-6 and (image == before).all()


def test_groups():
    p = np.random.default_rng(0).random((8, 3, 4)).astype(np.float32)
    p /= p.sum(0)
    assert np.allclose(grouped(p, ["clothes"]), p[4] + p[5] + p[6])
    assert np.allclose(grouped(p, ["person"]), 1 - p[0], atol=1e-6)
    assert np.allclose(grouped(p, ["face", "body", "hair"]), 1 - p[0], atol=1e-6)
    assert np.allclose(grouped(p, ["body", "skin"]), grouped(p, ["body"]))  # a part is counted once
    with refuses("group-unknown"):
        grouped(p, ["hat"])


def test_image_keeps_its_aspect_ratio():
    assert fitted(480, 640) == (168, 224) and fitted(1920, 1080) == (224, 128) and fitted(1, 5000) == (4, 224)
    assert fitted(7, 7) == (192, 192)


def test_absent_or_other_file_is_refused(tmp_path: Path):
    with refuses("installation-incomplete"):
        Parts(tmp_path / "nowhere.onnx")
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    with refuses("model-unreadable"):
        Parts(tmp_path / "broken.onnx")


def test_looking_for_parts_never_loads_torch(exported):
    code = (
        "import sys, numpy as np; from pathlib import Path; from veil.people.parts import Parts;"
        f"Parts(Path({str(exported[1])!r})).maps(np.zeros((8, 8, 3), np.uint8), ['person']);"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.skipif(not SHIPPED.is_file(), reason="no part network has been trained yet")
def test_shipped_network_finds_the_astronaut():
    assert SHIPPED.stat().st_size <= 5e6
    network = parts.parts()
    person = network.maps(built_in("astronaut"), ["person"])
    face = network.maps(built_in("astronaut"), ["face"])
    assert person[250:500, 100:300].mean() > 0.8 and face[90:160, 200:255].mean() > 0.8
    cat = pytest.importorskip("skimage.data").chelsea()
    assert (network.maps(cat, ["face"]) >= network.thresholds["face"]).mean() < 0.1
