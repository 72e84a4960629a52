"""Networks from images to images: the published layout, any size, every frame by itself."""

import doctest
import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn
from torchvision.models import resnet18

from errors import refuses
from veil.nn import unet
from veil.nn.onnx import session
from veil.nn.unet import NETS, ImageToImage, Translator, UNet, UNetPlusPlus, make, per_frame, to_onnx

SMALL = {"unet": {"width": 8}, "unet++": {}, "translator": {"blocks": 2}}


def fresh(name: str) -> ImageToImage:
    """A small network whose running statistics are no longer the initial ones."""
    torch.manual_seed(0)
    net = make(name, **SMALL[name])
    with torch.no_grad():
        for _ in range(3):
            net(torch.rand(2, 3, 64, 64))
    return net.eval()


def count(net: nn.Module) -> int:
    return sum(weight.numel() for weight in net.parameters())


def convolved(*channels: int, kernel: int = 3) -> int:
    """Weights of a chain of convolutions without bias, each with a norm's scale and shift."""
    return sum(kernel**2 * before * after + 2 * after for before, after in pairwise(channels))


def test_published_number_of_parameters_of_the_unet():
    with torch.device("meta"):
        net, student, flat = UNet(), UNet(width=16), UNet(width=16, depth=1)
    # What many have counted of milesial's bilinear form is 17,267,393, with one channel out of 64 and a bias (here three and
    # none) at each of its eighteen convolutions.
    biases = 2 * (64 + 128 + 256 + 512 + 512) + (512 + 256) + (256 + 128) + (128 + 64) + (64 + 64)
    assert count(net) == 17_267_393 + 2 * (64 + 1) - biases == 17_263_107
    down = convolved(3, 16, 16) + convolved(16, 32, 32) + convolved(32, 64, 64) + convolved(64, 128, 128)
    up = convolved(256, 128, 64) + convolved(128, 64, 32) + convolved(64, 32, 16) + convolved(32, 16, 16)
    assert count(student) == down + convolved(128, 128, 128) + up + 3 * (16 + 1)
    assert count(flat) == convolved(3, 16, 16) + convolved(16, 16, 16) + convolved(32, 16, 16) + 3 * (16 + 1)
    assert (net.stride, flat.stride) == (16, 2)


def test_published_number_of_parameters_of_the_unet_plus_plus():
    with torch.device("meta"):
        net, stage = UNetPlusPlus(), resnet18().layer4
    # segmentation-models-pytorch 0.6.0 counts 13,898,787 for UnetPlusPlus("resnet18", encoder_depth=4,
    # decoder_channels=(256, 128, 64, 32), classes=3): 11,176,512 of the encoder, with its unused stage, and 2,721,408
    # of the decoder.
    assert count(net) == 13_898_787 - count(stage)
    assert (count(net.encoder), count(net.decoder)) == (11_176_512 - count(stage), 2_721_408)
    nodes = [(256 + 128, 256), (256 + 2 * 64, 128), (128 + 64, 64)]
    nodes += [(128 + 3 * 64, 64), (64 + 2 * 64, 64), (64 + 64, 64), (64, 32)]
    assert count(net.decoder) == sum(convolved(inputs, outputs, outputs) for inputs, outputs in nodes)


def test_published_number_of_parameters_of_the_translator():
    with torch.device("meta"):
        net, short = Translator(), Translator(blocks=0)
    ends = convolved(3, 32, kernel=9) + convolved(32, 3, kernel=9)
    middle = convolved(32, 64, 128) + convolved(128, 64, 32)
    assert count(short) == ends + middle
    assert count(net) == ends + middle + 5 * convolved(128, 128, 128)


@pytest.mark.parametrize("name", NETS)
@torch.inference_mode()
def test_any_size_and_within_the_range(name):
    net = fresh(name)
    for height, width in ((64, 64), (33, 70), (17, 5), (1, 1)):
        images = torch.rand(1, 3, height, width)
        kept, output = images.clone(), net(images)
        assert output.shape == images.shape and torch.equal(images, kept)
        assert output.min() >= 0 and output.max() <= 1
    with pytest.raises(ValueError, match=r"\(1, 4, 8, 8\)"):
        net(torch.rand(1, 4, 8, 8))


@pytest.mark.parametrize("name", NETS)
@torch.inference_mode()
def test_a_padded_image_is_the_padded_image(name):
    """What is filled in is the border, and it is cut off again at the right end."""
    net, image = fresh(name), torch.rand(1, 3, 48, 50)
    right = -50 % net.stride
    padded = torch.cat([image, image[..., -1:].expand(-1, -1, -1, right)], 3)
    assert torch.equal(net(image), net.forward_aligned(padded)[..., :50])


@pytest.mark.parametrize("name", NETS)
@torch.inference_mode()
def test_images_of_a_batch_are_independent(name):
    net, images = fresh(name), torch.rand(2, 3, 40, 56)
    both = net(images)
    assert torch.allclose(both, torch.cat([net(images[:1]), net(images[1:])]), atol=1e-5)
    assert not torch.allclose(both[0], both[1], atol=1e-3)


@pytest.mark.parametrize("name", NETS)
@torch.inference_mode()
def test_channels_last_is_the_same(name):
    net, images = fresh(name), torch.rand(2, 3, 64, 64)
    plain = net(images)
    net.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    last = net(images.contiguous(memory_format=torch.channels_last))
    assert torch.allclose(plain, last, atol=1e-5)
    # torch's instance norm returns the contiguous layout.
    assert name == "translator" or last.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("name", NETS)
def test_every_weight_learns(name):
    net = fresh(name).train()
    (net(torch.rand(2, 3, 64, 64)) * torch.randn(2, 3, 64, 64)).sum().backward()
    assert [key for key, w in net.named_parameters() if w.grad is None or not w.grad.abs().max() > 1e-6] == []


@pytest.mark.parametrize("name", NETS)
def test_training_on_the_smallest_image_reduces_the_loss(name):
    torch.manual_seed(0)
    net, image = make(name, **SMALL[name]), torch.rand(1, 3, 3, 3)
    optimizer, losses = torch.optim.Adam(net.parameters(), lr=1e-3), []
    for _ in range(10):
        loss = (net(image) - 0.2).square().mean()
        optimizer.zero_grad()
        loss.backward()
        assert all(w.grad is not None and w.grad.isfinite().all() for w in net.parameters())
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]


@torch.inference_mode()
def test_the_translator_is_grey_and_between_black_and_white():
    net = fresh("translator")
    assert isinstance(net, Translator)
    output = net(torch.rand(1, 3, 32, 32))
    assert torch.equal(output[:, 0], output[:, 1]) and torch.equal(output[:, 1], output[:, 2])
    for value, grey in ((-30.0, 0.0), (0.0, 0.5), (30.0, 1.0)):
        nn.init.zeros_(net.decoder[-1].weight)  # pyright: ignore[reportArgumentType]
        nn.init.constant_(net.decoder[-1].bias, value)  # pyright: ignore[reportArgumentType]
        assert torch.allclose(net(torch.rand(1, 3, 32, 32)), torch.tensor(grey))


@torch.inference_mode()
def test_without_activation_values_leave_the_range():
    torch.manual_seed(0)
    bare, images = UNetPlusPlus(activation="none").eval(), torch.rand(1, 3, 32, 32)
    bounded = UNetPlusPlus().eval()
    bounded.load_state_dict(bare.state_dict())
    assert torch.allclose(bounded(images), bare(images).sigmoid())
    assert bare(images).min() < 0
    with refuses("activation-unknown"):
        UNetPlusPlus(activation="tanh")  # pyright: ignore[reportArgumentType]


@torch.inference_mode()
def test_levels_are_joined_as_written():
    """The equations of the docstring, each level written out."""
    net = fresh("unet")
    assert isinstance(net, UNet)

    def up2(x: Tensor) -> Tensor:
        """Bilinear with the corners aligned: along each axis, 2n points evenly from the first of n to the last."""
        for axis in (2, 3):
            at = torch.linspace(0, x.shape[axis] - 1, 2 * x.shape[axis])
            left = at.long().clamp(max=x.shape[axis] - 2)
            part = (at - left).view([-1, 1] if axis == 2 else [-1])
            x = (1 - part) * x.index_select(axis, left) + part * x.index_select(axis, left + 1)
        return x

    images = torch.rand(1, 3, 48, 64)
    maps = [net.top(images)]
    for level in range(4):
        pooled = maps[-1].unflatten(3, (-1, 2)).unflatten(2, (-1, 2)).amax((3, 5))
        maps.append(net.down[level](pooled))
    assert [image.shape[1] for image in maps] == [8, 16, 32, 64, 64]
    x = maps[4]
    for step, level in enumerate((3, 2, 1, 0)):
        x = net.up[step](torch.cat([maps[level], up2(x)], 1))
    assert torch.allclose(net.out(x).sigmoid(), net(images), atol=1e-5)


@torch.inference_mode()
def test_nodes_are_nested_as_written():
    """The equations of the docstring, each node written out."""
    net = fresh("unet++")
    assert isinstance(net, UNetPlusPlus)

    def node(name: str, coarse: Tensor, *fine: Tensor) -> Tensor:
        block = net.get_submodule(f"decoder.blocks.{name}")
        x = torch.cat([coarse.repeat_interleave(2, 2).repeat_interleave(2, 3), *fine], 1)
        for layer in ("conv1", "conv2"):
            x = block.get_submodule(layer)(x)
        return x

    images = torch.rand(1, 3, 48, 64)
    f0, f1, f2, f3 = net.encoder(images)
    assert [image.shape[1:] for image in (f0, f1, f2, f3)] == [
        (256, 3, 4),
        (128, 6, 8),
        (64, 12, 16),
        (64, 24, 32),
    ]
    x00, x11, x22 = node("x_0_0", f0, f1), node("x_1_1", f1, f2), node("x_2_2", f2, f3)
    x01 = node("x_0_1", x00, x11, f2)
    x12 = node("x_1_2", x11, x22, f3)
    x02 = node("x_0_2", x01, x12, x22, f3)
    assert torch.allclose(net.segmentation_head(node("x_0_3", x02)).sigmoid(), net(images), atol=1e-6)


@torch.inference_mode()
def test_an_encoder_begins_as_a_resnet_of_torchvision():
    net, theirs = UNetPlusPlus().eval(), resnet18().eval()
    state = theirs.state_dict()
    kept = [key for key in state if not key.startswith(("layer4", "fc"))]
    assert net.load_encoder(state) == len(kept) == len(net.encoder.state_dict())
    images = torch.rand(1, 3, 64, 64)
    stem = theirs.maxpool(theirs.relu(theirs.bn1(theirs.conv1(images))))
    assert torch.allclose(
        net.encoder(images)[0], theirs.layer3(theirs.layer2(theirs.layer1(stem))), atol=1e-5
    )
    with refuses("weights-mismatch"):
        net.load_encoder({key: value for key, value in state.items() if key != "layer1.0.conv1.weight"})
    with refuses("weights-mismatch"):
        net.load_encoder({**state, "conv1.weight": torch.zeros(1)})
    with refuses("weights-mismatch"):
        net.load_encoder({**state, "layer1.2.conv1.weight": torch.zeros(1)})


@torch.inference_mode()
def test_every_frame_stays_in_its_place():
    # Video b, colour c, frame t is full of 100 b + 10 c + t.
    videos, colours, times = torch.meshgrid(torch.arange(2), torch.arange(3), torch.arange(4), indexing="ij")
    clip = (100.0 * videos + 10 * colours + times)[..., None, None].expand(2, 3, 4, 5, 6)
    seen: list[Tensor] = []

    def net(images: Tensor) -> Tensor:
        seen.append(images)
        return images + 1000

    assert torch.equal(per_frame(net, clip), clip + 1000)
    for index, image in enumerate(seen[0]):  # every image is one frame of one video
        assert torch.equal(image, clip[index // 4, :, index % 4])
    clip = torch.rand(2, 3, 4, 40, 24)
    output, unet = per_frame(fresh("unet"), clip), fresh("unet")
    assert output.shape == clip.shape
    for video in range(2):
        for time in range(4):
            alone = unet(clip[video, :, time][None])[0]
            assert torch.allclose(output[video, :, time], alone, atol=1e-5)
    with pytest.raises(ValueError, match=r"\(2, 4, 3, 5, 5\)"):
        per_frame(unet, torch.rand(2, 4, 3, 5, 5))


@pytest.mark.parametrize("name", NETS)
@torch.inference_mode()
def test_an_exported_network_is_the_same(name, tmp_path: Path):
    net, path = fresh(name).train(), tmp_path / "net.onnx"
    to_onnx(net, path, (64, 32))
    assert net.training and [file.name for file in tmp_path.iterdir()] == ["net.onnx"]
    assert json.loads(onnx.load(path).metadata_props[0].value) == net.stride
    net.eval()
    to_onnx(net, tmp_path / "half.onnx", 64, half=True)
    assert (tmp_path / "half.onnx").stat().st_size < 0.6 * path.stat().st_size
    whole, half = session(path), session(tmp_path / "half.onnx")
    for batch, height, width in ((1, 64, 32), (3, 32, 80), (2, 96, 64)):
        images = torch.rand(batch, 3, height, width)
        ours, fed = net(images).numpy(), {"images": images.numpy()}
        assert np.abs(np.asarray(whole.run(["output"], fed)[0]) - ours).max() < 1e-4
        assert np.abs(np.asarray(half.run(["output"], fed)[0]) - ours).max() < 2e-2


@pytest.mark.parametrize("size", [(64, 50), 0])
def test_a_size_that_is_not_a_multiple_of_the_stride_is_not_exported(size, tmp_path: Path):
    with refuses("size-not-aligned"):
        to_onnx(UNet(width=1), tmp_path / "net.onnx", size)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "options", "code", "part"),
    [
        ("unet+", {}, "network-unknown", "'unet++'"),
        ("zzz", {}, "network-unknown", "unet, "),
        ("unet", {"widht": 8}, "option-unknown", "'width'"),
        ("unet", {"width": 0}, "network-shape", "width=0"),
        ("translator", {"blocks": -1}, "network-shape", "blocks=-1"),
    ],
)
def test_unknown_names_and_impossible_options(name, options, code, part):
    with refuses(code) as raised:
        make(name, **options)
    assert part in str(raised.value)


def test_examples():
    assert doctest.testmod(unet).failed == 0


def test_every_docstring_names_the_source_of_weights():
    assert all(
        "weights are published" in doc(net) or "published weights" in doc(net) for net in NETS.values()
    )


def doc(net: type[ImageToImage]) -> str:
    return " ".join((net.__doc__ or "").split())
