"""Image networks have the published layout and load published files, and nothing else."""

import os
import pickle
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import torchvision
from torch import Tensor, nn

from errors import refuses
from published_files import Shapes, digest, holds, norm, shapes_of, small_file
from veil.core import VeilError
from veil.nn.classifier import Classifier
from veil.nn.image import IMAGE_NETS, make
from veil.nn.timm_nets import ViT

# SHA-256 of the sorted lines "name shape" of the state dict, taken from timm 1.0.30.
DIGESTS = {
    "mobilenet_v1": "f19026159041706abb822fe1ef7e55510cf80c09ee42d88deba69e06ba53026a",
    "vit_b_16": "6e116342a243f50b6ae4fe04ca713d19065b966086ee767f101828f8fe186bea",
    "vit_b_32": "45bf6c575c84f587446f3b4181bee4740723c4bf39fbb881e37e21f721028fd4",
}


def mobilenet() -> Shapes:
    """The published tensors of MobileNetV1, written down apart from the network."""
    shapes: Shapes = {"conv_stem.weight": (32, 3, 3, 3)} | norm("bn1", 32)
    widths = {"0.0": 64, "1.0": 128, "1.1": 128, "2.0": 256, "2.1": 256}
    widths |= {f"3.{i}": 512 for i in range(6)} | {"4.0": 1024, "4.1": 1024}
    before = 32
    for place, width in widths.items():
        at = f"blocks.{place}"
        shapes |= {f"{at}.conv_dw.weight": (before, 1, 3, 3), f"{at}.conv_pw.weight": (width, before, 1, 1)}
        shapes |= norm(f"{at}.bn1", before) | norm(f"{at}.bn2", width)
        before = width
    return shapes | {"classifier.weight": (1000, 1024), "classifier.bias": (1000,)}


def fresh(name: str, outputs: int = 7) -> Classifier:
    torch.manual_seed(0)
    return make(name, outputs).eval()


@pytest.mark.parametrize("name", IMAGE_NETS)
def test_published_number_of_parameters(name):
    with torch.device("meta"):
        net = IMAGE_NETS[name].build(IMAGE_NETS[name].classes)
    assert sum(p.numel() for p in net.parameters()) == IMAGE_NETS[name].parameters


@pytest.mark.parametrize("name", DIGESTS)
def test_published_layout(name):
    with torch.device("meta"):
        assert digest(shapes_of(IMAGE_NETS[name].build(1000))) == DIGESTS[name]


@pytest.mark.parametrize("name", [name for name in IMAGE_NETS if name.startswith("resnet")])
def test_layout_of_torchvision(name):
    with torch.device("meta"):
        theirs = getattr(torchvision.models, name)()
        assert shapes_of(IMAGE_NETS[name].build(1000)) == shapes_of(theirs)


@pytest.mark.parametrize("name", IMAGE_NETS)
def test_any_size(name):
    with torch.device("meta"):
        net = IMAGE_NETS[name].build(7).eval()
    for height, width in ((112, 112), (224, 224), (33, 70)):
        assert net(torch.empty(2, 3, height, width, device="meta")).shape == (2, 7)


@pytest.mark.parametrize("name", IMAGE_NETS)
@torch.inference_mode()
def test_an_image_is_classified_alone_and_by_its_features(name):
    net, images = fresh(name), torch.randn(2, 3, 56, 56)
    both, features = net(images), net.features(images)
    near = {"rtol": 1e-3, "atol": 1e-3 * both.abs().max().item()}
    assert torch.allclose(both, torch.cat([net(images[:1]), net(images[1:])]), **near)
    assert not torch.allclose(both[0], both[1], **near)
    assert features.shape == (2, net.dim)
    assert torch.allclose(both, net.get_submodule(net.last)(features), **near)


@pytest.mark.parametrize("name", ["small2d", "mobilenet_v1"])
def test_a_seed_makes_the_same_network(name):
    one, other = fresh(name).state_dict(), fresh(name).state_dict()
    assert all(torch.equal(one[key], other[key]) for key in one)


@torch.inference_mode()
def test_position_embeddings_are_resampled():
    with torch.device("meta"):
        net = ViT(7, patch=32)
    # Embeddings that grow from top to bottom do so on any grid.
    down = torch.cat([torch.zeros(1), torch.linspace(0, 1, 7).repeat_interleave(7)])
    net.pos_embed, net.cls_token = nn.Parameter(down[None, :, None]), nn.Parameter(torch.zeros(1, 1, 1))
    down = net._pos_embed(torch.zeros(1, 3, 5, 1))[0, 1:, 0].unflatten(0, (3, 5))
    assert torch.allclose(down, down[:, :1].expand(3, 5), atol=1e-5)
    assert down[0, 0] < down[1, 0] < down[2, 0] and abs(down[1, 0].item() - 0.5) < 1e-5


@pytest.mark.parametrize("wrap", ["", "state_dict", "model_state", "model"])
def test_a_published_file_is_loaded_whole(tmp_path, wrap):
    assert digest(mobilenet()) == DIGESTS["mobilenet_v1"]
    net = make("mobilenet_v1", 1000, weights=small_file(tmp_path / "m.pth", mobilenet(), wrap))
    assert net.loaded == len(mobilenet()) == 164 and holds(net, mobilenet())


def test_another_number_of_outputs_gets_a_fresh_last_layer(tmp_path):
    path = small_file(tmp_path / "m.pth", mobilenet())
    net = make("mobilenet_v1", 7, weights=path)
    assert net.loaded == 162
    assert holds(nn.ModuleDict({"conv_stem": net.get_submodule("conv_stem")}), mobilenet())
    assert net.get_parameter("classifier.weight").shape == (7, 1024)
    assert net.get_parameter("classifier.weight").abs().max() < 1


@torch.inference_mode()
def test_loaded_weights_do_the_same(tmp_path):
    own, images = fresh("small2d"), torch.randn(2, 3, 56, 56)
    safetensors = pytest.importorskip("safetensors.torch")
    several = {f"module.{name}": value for name, value in own.state_dict().items()}
    torch.save({"state_dict": several}, tmp_path / "a.pt")
    safetensors.save_file(
        {name: value.contiguous() for name, value in own.state_dict().items()}, tmp_path / "a.safetensors"
    )
    for file in ("a.pt", "a.safetensors"):
        net = make("small2d", 7, weights=str(tmp_path / file)).eval()
        assert torch.equal(net(images), own(images)) and net.loaded == len(own.state_dict())


def test_a_file_of_another_network_is_refused(tmp_path):
    path = small_file(tmp_path / "m.pth", mobilenet())
    with refuses("weights-mismatch") as raised:
        make("resnet18", 1000, weights=path)
    assert "m.pth" in str(raised.value) and "conv1.weight" in str(raised.value)
    path = small_file(path, mobilenet() | {"blocks.2.0.bn1.bias": (127,)})
    with refuses("weights-mismatch") as raised:
        make("mobilenet_v1", 1000, weights=path)
    assert "(127,)" in str(raised.value) and "(128,)" in str(raised.value)
    path = small_file(path, mobilenet() | {"blocks.5.0.bn1.bias": (1,)})
    with refuses("weights-mismatch") as raised:
        make("mobilenet_v1", 1000, weights=path)
    assert "blocks.5.0.bn1.bias" in str(raised.value)


class Hostile:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("form", ["pickle", "torch", "torch of before 2020", "among tensors"])
def test_a_file_that_would_run_code_is_refused(tmp_path, form):
    path, touched = tmp_path / "evil.pth", tmp_path / "touched"
    if form == "pickle":
        path.write_bytes(pickle.dumps(Hostile(touched), protocol=2))
    elif form.startswith("torch"):
        torch.save(Hostile(touched), path, _use_new_zipfile_serialization=form == "torch")
    else:
        torch.save({"conv1.weight": torch.zeros(1), "more": Hostile(touched)}, path)
    with pytest.raises(VeilError) as raised:
        make("small2d", 7, weights=path)
    assert not touched.exists() and raised.value.code in ("weights-unsafe", "weights-damaged")
    assert "evil.pth" in str(raised.value)
    assert "\n" not in str(raised.value) and "weights_only" not in str(raised.value)


@pytest.mark.parametrize("name", ["a.pth", "a.safetensors"])
@pytest.mark.parametrize("content", [b"", b"no weights", b"PK\x03\x04 half a zip"])
def test_a_damaged_file_is_refused(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(VeilError) as raised:
        make("small2d", 7, weights=tmp_path / name)
    assert name in str(raised.value)
    assert "\n" not in str(raised.value) and raised.value.code in ("weights-unsafe", "weights-damaged")


def test_a_file_without_named_tensors_and_no_file(tmp_path):
    torch.save([torch.zeros(1)], tmp_path / "a.pth")
    with refuses("weights-not-named"):
        make("small2d", 7, weights=tmp_path / "a.pth")
    with refuses("weights-missing"):
        make("small2d", 7, weights=tmp_path / "b.pth")


def test_an_unknown_name_and_impossible_numbers():
    with refuses("network-unknown") as raised:
        make("resnet_50", 7)
    assert "'resnet50'" in str(raised.value)
    with refuses("network-unknown") as raised:
        make("zzz", 7)
    assert "resnet18, " in str(raised.value)
    with refuses("network-shape"):
        make("small2d", 0)


def test_a_hub_is_used_only_on_request(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))

    def offline(*_: object, **__: object) -> None:
        raise OSError("no network")

    monkeypatch.setattr(torch.hub, "download_url_to_file", offline)
    make("resnet18", 7)
    with refuses("not-fetched"):
        make("resnet18", 7, weights="hub")
    with refuses("no-hub"):
        make("small2d", 7, weights="hub")
    with torch.device("meta"):
        shapes = shapes_of(torchvision.models.resnet18())
    (tmp_path / "hub" / "checkpoints").mkdir(parents=True, exist_ok=True)
    small_file(tmp_path / "hub" / "checkpoints" / "resnet18-f37072fd.pth", shapes)
    net = make("resnet18", 1000, weights="hub")
    assert net.loaded == len(shapes) and holds(net, shapes)


def test_weights_are_fetched_from_timm(monkeypatch):
    timm = pytest.importorskip("timm")
    with torch.device("meta"):
        theirs = IMAGE_NETS["mobilenet_v1"].build(1000)
    calls = []

    def create_model(name: str, pretrained: bool) -> nn.Module:
        calls.append((name, pretrained))
        return theirs.to_empty(device="cpu")

    monkeypatch.setattr(timm, "create_model", create_model)
    assert make("mobilenet_v1", 1000, weights="hub").loaded == 164
    assert calls == [("mobilenetv1_100.ra4_e3600_r224_in1k", True)]


@pytest.mark.slow
def test_the_small_one_learns():
    """Stripes in four directions, in any colours, phase and place."""
    torch.manual_seed(0)

    def stripes(count: int) -> tuple[Tensor, Tensor]:
        label = torch.arange(count) % 4
        angle = (label * torch.pi / 4)[:, None, None]
        y, x = torch.meshgrid(torch.arange(32.0), torch.arange(32.0), indexing="ij")
        along = x * angle.cos() + y * angle.sin() + 6 * torch.rand(count, 1, 1)
        picture = (along % 6 < 3).float()[:, None] * torch.randn(count, 3, 1, 1)
        return picture + 0.2 * torch.randn(count, 3, 32, 32), label

    net = make("small2d", 4)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    for _ in range(40):
        images, label = stripes(32)
        optimizer.zero_grad()
        F.cross_entropy(net(images), label).backward()
        optimizer.step()
    images, label = stripes(64)
    with torch.inference_mode():
        assert (net.eval()(images).argmax(1) == label).float().mean() > 0.8
