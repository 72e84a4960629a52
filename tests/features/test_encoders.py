"""Frozen encoders: published files load by their own names, clips are seen as they should be, features hold still."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torchvision.models import get_model

from errors import refuses
from veil.apps.train import train
from veil.core import VeilError
from veil.features.encoder_training import EncoderHeads, EncoderRecipe, patches, sample_batch
from veil.features.encoders import ENCODERS, SHIPPED, make
from veil.features.encoders.convolutional import Compact
from veil.features.encoders.frozen import Backbone, FrozenEncoder, center_square
from veil.features.encoders.vit import VideoViT, ViTConfig, rotate_by_position
from veil.features.encoders.weights import fill_backbone
from veil.nn import video
from veil.training import config
from veil.training.run import Run

SMALL = ViTConfig(12, 2, 2, 24, patch=8, size=16, length=4)


def small(monkeypatch, name: str, **more) -> ViTConfig:
    """Make a published transformer small; all else stays as it is."""
    shape = ENCODERS[name].shape
    assert shape is not None
    size = 2 * shape.patch
    shape = replace(shape, dim=24, depth=2, heads=2, inner=48, size=size, length=4, **more)
    entry = replace(ENCODERS[name], build=lambda: VideoViT(shape), shape=shape, size=size, length=4)
    monkeypatch.setitem(ENCODERS, name, entry)
    return shape


def random_state(names: dict[str, tuple[int, ...]], seed: int = 0) -> dict[str, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return {name: 0.3 * torch.randn(shape, generator=rng) for name, shape in names.items()}


def videomae_names(s: ViTConfig, classes: int = 400) -> dict[str, tuple[int, ...]]:
    """Names and shapes of VideoMAEForVideoClassification, as the hub has it."""
    found: dict[str, tuple[int, ...]] = {
        "videomae.embeddings.patch_embeddings.projection.weight": (s.dim, 3, 2, s.patch, s.patch),
        "videomae.embeddings.patch_embeddings.projection.bias": (s.dim,),
        "fc_norm.weight": (s.dim,),
        "fc_norm.bias": (s.dim,),
        "classifier.weight": (classes, s.dim),
        "classifier.bias": (classes,),
    }
    for layer in range(s.depth):
        at = f"videomae.encoder.layer.{layer}"
        found |= {f"{at}.attention.attention.{part}_bias": (s.dim,) for part in "qv"}
        found |= {
            f"{at}.attention.attention.{part}.weight": (s.dim, s.dim) for part in ("query", "key", "value")
        }
        for name, shape in (
            ("attention.output.dense", (s.dim, s.dim)),
            ("intermediate.dense", (s.inner, s.dim)),
            ("output.dense", (s.dim, s.inner)),
            ("layernorm_before", (s.dim,)),
            ("layernorm_after", (s.dim,)),
        ):
            found |= {f"{at}.{name}.weight": shape, f"{at}.{name}.bias": (shape[0],)}
    return found


def official_names(s: ViTConfig) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the encoders of VideoMAE V2, InternVideo and V-JEPA in their own repositories."""
    found: dict[str, tuple[int, ...]] = {
        "patch_embed.proj.weight": (s.dim, 3, 2, s.patch, s.patch),
        "patch_embed.proj.bias": (s.dim,),
        f"{s.final_norm}.weight": (s.dim,),
        f"{s.final_norm}.bias": (s.dim,),
    }
    if s.positions == "stored":
        found["pos_embed"] = (1, s.length // 2 * (s.size // s.patch) ** 2, s.dim)
    for layer in range(s.depth):
        at = f"blocks.{layer}"
        found[f"{at}.attn.qkv.weight"] = (3 * s.dim, s.dim)
        if s.bias == "qv":
            found |= {f"{at}.attn.q_bias": (s.dim,), f"{at}.attn.v_bias": (s.dim,)}
        else:
            found[f"{at}.attn.qkv.bias"] = (3 * s.dim,)
        for name, shape in (
            ("norm1", (s.dim,)),
            ("norm2", (s.dim,)),
            ("attn.proj", (s.dim, s.dim)),
            ("mlp.fc1", (s.inner, s.dim)),
            ("mlp.fc2", (s.dim, s.inner)),
        ):
            found |= {f"{at}.{name}.weight": shape, f"{at}.{name}.bias": (shape[0],)}
    return found


def hub_folder(folder: Path, state: dict[str, Tensor], shape: ViTConfig, **config) -> Path:
    folder.mkdir()
    save_file(state, folder / "model.safetensors")
    common = {
        "model_type": "videomae",
        "hidden_size": shape.dim,
        "num_hidden_layers": shape.depth,
        "num_attention_heads": shape.heads,
        "patch_size": shape.patch,
        "tubelet_size": 2,
    }
    (folder / "config.json").write_text(json.dumps({**common, **config}))
    return folder


def naive_videomae(state: dict[str, Tensor], s: ViTConfig, clip: Tensor) -> Tensor:
    """VideoMAE's pooled features from the hub's tensors, one head and one token after the other."""

    def norm(x: Tensor, at: str, eps: float) -> Tensor:
        x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, unbiased=False) + eps).sqrt()
        return x * state[f"{at}.weight"] + state[f"{at}.bias"]

    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    clip = (clip - mean.view(3, 1, 1, 1)) / std.view(3, 1, 1, 1)
    kernel = state["videomae.embeddings.patch_embeddings.projection.weight"]
    bias = state["videomae.embeddings.patch_embeddings.projection.bias"]
    rows = []
    for t in range(0, s.length, 2):
        for y in range(0, s.size, s.patch):
            for x in range(0, s.size, s.patch):
                cut = clip[:, t : t + 2, y : y + s.patch, x : x + s.patch]
                place = torch.tensor(
                    [
                        (math.sin if j % 2 == 0 else math.cos)(len(rows) / 10000 ** (2 * (j // 2) / s.dim))
                        for j in range(s.dim)
                    ]
                )
                rows.append((kernel * cut).flatten(1).sum(1) + bias + place)
    x = torch.stack(rows)
    for layer in range(s.depth):
        at = f"videomae.encoder.layer.{layer}"
        inside = f"{at}.attention.attention"
        y = norm(x, f"{at}.layernorm_before", 1e-12)
        query = y @ state[f"{inside}.query.weight"].T + state[f"{inside}.q_bias"]
        key = y @ state[f"{inside}.key.weight"].T
        value = y @ state[f"{inside}.value.weight"].T + state[f"{inside}.v_bias"]
        heads = []
        for h in range(s.heads):
            own = slice(h * s.dim // s.heads, (h + 1) * s.dim // s.heads)
            score = query[:, own] @ key[:, own].T / math.sqrt(s.dim // s.heads)
            heads.append(score.softmax(1) @ value[:, own])
        out = f"{at}.attention.output.dense"
        x = x + torch.cat(heads, 1) @ state[f"{out}.weight"].T + state[f"{out}.bias"]
        y = norm(x, f"{at}.layernorm_after", 1e-12)
        y = F.gelu(y @ state[f"{at}.intermediate.dense.weight"].T + state[f"{at}.intermediate.dense.bias"])
        x = x + y @ state[f"{at}.output.dense.weight"].T + state[f"{at}.output.dense.bias"]
    return norm(x.mean(0), "fc_norm", 1e-5)


def test_videomae_of_the_hub_is_the_equation(tmp_path, monkeypatch):
    shape = small(monkeypatch, "videomae-b")
    state = random_state(videomae_names(shape))
    encoder = make("videomae-b", hub_folder(tmp_path / "hub", state, shape))
    clip = torch.rand(2, 3, 4, shape.size, shape.size)
    expected = torch.stack([naive_videomae(state, shape, one) for one in clip])
    torch.testing.assert_close(encoder.pooled(clip), expected, rtol=1e-4, atol=1e-4)
    assert encoder(clip).shape == (2, 8, 24)
    # Newer versions of transformers save the same biases under other names.
    newer = {k.replace("q_bias", "query.bias").replace("v_bias", "value.bias"): v for k, v in state.items()}
    again = make("videomae-b", hub_folder(tmp_path / "newer", newer, shape))
    assert again.fingerprint == encoder.fingerprint


def test_videomae_agrees_with_transformers(tmp_path, monkeypatch):
    transformers = pytest.importorskip("transformers")
    shape = small(monkeypatch, "videomae-b")
    config = transformers.VideoMAEConfig(
        image_size=shape.size, num_frames=4, hidden_size=24, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48
    )  # fmt: skip
    config.num_labels = 5
    theirs = transformers.VideoMAEForVideoClassification(config).eval()
    theirs.save_pretrained(tmp_path / "hub")
    ours = make("videomae-b", tmp_path / "hub")
    clip = torch.rand(2, 3, 4, shape.size, shape.size)
    theirs.classifier = nn.Identity()
    with torch.no_grad():
        expected = theirs(ours.preprocess(clip).transpose(1, 2)).logits
    torch.testing.assert_close(ours.pooled(clip), expected, rtol=1e-4, atol=1e-5)


def test_vjepa2_agrees_with_transformers(tmp_path, monkeypatch):
    transformers = pytest.importorskip("transformers")
    shape = small(monkeypatch, "vjepa2-l")
    config = transformers.VJEPA2Config(
        crop_size=shape.size, frames_per_clip=4, hidden_size=24, num_hidden_layers=2, num_attention_heads=2, mlp_ratio=2.0,
        pred_hidden_size=24, pred_num_attention_heads=2, pred_num_hidden_layers=1,
    )  # fmt: skip
    theirs = transformers.VJEPA2Model(config).eval()
    theirs.save_pretrained(tmp_path / "hub")
    ours = make("vjepa2-l", tmp_path / "hub")
    clip = torch.rand(2, 3, 4, shape.size, shape.size)
    with torch.no_grad():
        expected = theirs(ours.preprocess(clip).transpose(1, 2), skip_predictor=True).last_hidden_state
    torch.testing.assert_close(ours(clip), expected, rtol=1e-4, atol=1e-5)


def test_places_rotate_queries_by_the_equation():
    grid, x = (2, 3, 4), torch.randn(1, 1, 24, 14, dtype=torch.float64)
    found = rotate_by_position(x, grid)
    pairs = 14 // 3 // 2
    for n in range(24):
        place = n // 12, n % 12 // 4, n % 4
        expected = x[0, 0, n].clone()
        for axis in range(3):
            for j in range(2 * pairs):
                angle = place[axis] * 10000 ** -((j % pairs) / pairs)
                own, other = 2 * pairs * axis + j, 2 * pairs * axis + (j ^ 1)
                sign = -1 if j % 2 == 0 else 1
                expected[own] = x[0, 0, n, own] * math.cos(angle) + sign * x[0, 0, n, other] * math.sin(angle)
        torch.testing.assert_close(found[0, 0, n], expected)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("videomae-b", 86_227_200),
        ("videomae2-g", 1_011_610_752),
        ("internvideo-h", 631_607_040),
        ("vjepa-h", 633_655_040),
        ("vjepa2-l", 303_885_312),
    ],
)
def test_transformers_have_the_published_names_and_shapes(name, parameters):
    entry = ENCODERS[name]
    assert entry.shape is not None
    with torch.device("meta"):
        body = entry.build()
    found = {key: tuple(value.shape) for key, value in body.state_dict().items()}
    assert found == official_names(entry.shape)
    assert sum(math.prod(shape) for shape in found.values()) == parameters


@pytest.mark.parametrize(
    ("name", "wrapped", "prefix", "more"),
    [
        ("videomae2-g", "module", "", {"head.weight": (710, 24), "head.bias": (710,)}),
        ("videomae2-g", "model", "", {"head.weight": (710, 24), "head.bias": (710,)}),
        ("internvideo-h", "module", "", {"head.weight": (700, 24), "head.bias": (700,)}),
        ("vjepa-h", "target_encoder", "module.backbone.", {}),
        ("vjepa2-l", "target_encoder", "module.backbone.", {"pos_embed": (1, 8, 24)}),
    ],
)
def test_official_files_give_the_same_features_in_any_format(
    tmp_path, monkeypatch, name, wrapped, prefix, more
):
    shape = small(monkeypatch, name)
    state = random_state({**official_names(shape), **more})
    held = {f"{prefix}{key}": value for key, value in state.items()}
    file = {wrapped: held, "optimizer": {"state": {}}, "epoch": 3}
    if wrapped == "target_encoder":
        file |= {
            "encoder": {key: value + 1 for key, value in held.items()},
            "predictor": {"x": torch.ones(1)},
        }
    torch.save(file, tmp_path / "official.pth")
    save_file(state, tmp_path / "same.safetensors")
    one, two = (make(name, tmp_path / file) for file in ("official.pth", "same.safetensors"))
    assert one.fingerprint == two.fingerprint
    clip = torch.rand(1, 3, 4, shape.size, shape.size)
    torch.testing.assert_close(one.pooled(clip), two.pooled(clip))
    own = one.body.state_dict()
    assert all(torch.equal(own[key], state[key]) for key in own)


def test_wrong_files_are_refused_by_their_first_wrong_tensor(tmp_path, monkeypatch):
    shape = small(monkeypatch, "videomae2-g")
    state = random_state(official_names(shape))

    def refused(state: dict[str, Tensor], *words: str) -> None:
        save_file(state, tmp_path / "wrong.safetensors")
        with pytest.raises(VeilError) as error:
            make("videomae2-g", tmp_path / "wrong.safetensors")
        assert all(word in str(error.value) for word in ("wrong.safetensors", *words))

    refused(
        {**state, "blocks.1.mlp.fc1.weight": torch.zeros(48, 20)},
        "blocks.1.mlp.fc1.weight",
        "(48, 20)",
        "(48, 24)",
    )
    refused({k: v for k, v in state.items() if k != "fc_norm.bias"}, "fc_norm.bias")
    refused({**state, "blocks.2.norm1.weight": torch.zeros(24)}, "blocks.2.norm1.weight")
    refused({**state, "blocks.0.norm1.bias": torch.full((24,), torch.nan)}, "blocks.0.norm1.bias")
    shape = small(monkeypatch, "videomae-b")
    hub = random_state(videomae_names(shape))
    lost = {k: v for k, v in hub.items() if k != "videomae.encoder.layer.1.attention.attention.key.weight"}
    folder = hub_folder(tmp_path / "lost", lost, shape)
    with refuses("weights-wrong") as wrong:
        make("videomae-b", folder)
    assert "layer.1.attention.key.weight" in str(wrong.value)
    folder = hub_folder(tmp_path / "other", hub, shape, hidden_size=1024)
    with refuses("weights-wrong") as wrong:
        make("videomae-b", folder)
    assert "hidden_size" in str(wrong.value)
    (tmp_path / "empty").mkdir()
    with refuses("weights-missing"):
        make("videomae-b", tmp_path / "empty")


def test_weights_are_found_where_they_may_lie(tmp_path, monkeypatch):
    shape = small(monkeypatch, "videomae-b")
    for variable in ("HF_HOME", "HF_HUB_CACHE", "VEIL_WEIGHTS"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    with refuses("weights-missing") as missing:
        make("videomae-b")
    assert "huggingface.co/MCG-NJU" in str(missing.value) and "VEIL_WEIGHTS" in str(missing.value)
    with refuses("weights-missing") as missing:
        make("i3d")
    assert "rgb_imagenet.pt" in str(missing.value)
    state = random_state(videomae_names(shape))
    own = hub_folder(tmp_path / "videomae-b", state, shape)
    monkeypatch.setenv("VEIL_WEIGHTS", str(tmp_path))
    mine = make("videomae-b")
    monkeypatch.delenv("VEIL_WEIGHTS")
    hub = tmp_path / "cache" / "huggingface" / "hub" / "models--MCG-NJU--videomae-base-finetuned-kinetics"
    (hub / "refs").mkdir(parents=True)
    (hub / "snapshots").mkdir()
    (hub / "refs" / "main").write_text("abc")
    own.rename(hub / "snapshots" / "abc")
    assert make("videomae-b").fingerprint == mine.fingerprint
    assert make("videomae-b", "MCG-NJU/videomae-base-finetuned-kinetics").fingerprint == mine.fingerprint
    with refuses("encoder-unknown") as unknown:
        make("videomae_b")
    assert "videomae-b" in str(unknown.value)


def test_i3d_is_the_network_without_its_classifier(tmp_path, monkeypatch):
    net = video.make("i3d", 400, frames=16, size=32).eval()
    torch.save(net.state_dict(), tmp_path / "rgb_imagenet.pt")
    monkeypatch.setitem(ENCODERS, "i3d", replace(ENCODERS["i3d"], size=32))
    encoder = make("i3d", tmp_path / "rgb_imagenet.pt")
    clip = torch.rand(1, 3, 16, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(encoder.pooled(clip), net.features(clip * 2 - 1))
    assert encoder.dim == 1024


@pytest.mark.parametrize("name", ["s3d", "swin3d_t"])
def test_torchvision_features_are_what_its_classifier_takes(name):
    torch.manual_seed(0)
    theirs = get_model(name, weights=None).eval()
    body = ENCODERS[name].build().eval()
    fill_backbone(body, theirs.state_dict(), name)
    x = torch.randn(1, 3, 16, 64, 64)
    seen: list[Tensor] = []
    last = [m for m in theirs.modules() if isinstance(m, nn.Linear | nn.Conv3d)][-1]
    last.register_forward_pre_hook(lambda _, given: seen.append(given[0].flatten(1)))
    if name == "s3d":  # its window does not fit into so small a picture
        theirs.avgpool = nn.AdaptiveAvgPool3d(1)
    with torch.no_grad():
        theirs(x)
        torch.testing.assert_close(body.pool(body(x)), seen[0], rtol=1e-4, atol=1e-5)
    assert body.dim == seen[0].shape[1]


class Whole(Backbone):
    """Gives back what it sees, as one token."""

    dim = 3

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3, 4))[:, None]


def test_clips_are_standardised_once_and_in_their_own_way():
    for name, entry in ENCODERS.items():
        encoder = FrozenEncoder(name, Whole(), size=8, length=4, mean=entry.mean, std=entry.std)
        clip = torch.tensor([0.2, 0.5, 0.9]).view(1, 3, 1, 1, 1).expand(1, 3, 4, 8, 8)
        expected = [(v - m) / s for v, m, s in zip((0.2, 0.5, 0.9), entry.mean, entry.std, strict=True)]
        torch.testing.assert_close(encoder.pooled(clip)[0], torch.tensor(expected))
    assert (ENCODERS["i3d"].mean, ENCODERS["i3d"].std) == ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    assert ENCODERS["videomae2-g"].mean == (0.485, 0.456, 0.406)


def test_other_sizes_are_brought_to_the_own_one():
    clip = torch.zeros(1, 3, 2, 8, 32)
    clip[..., 12:20] = 1  # the middle square
    seen = center_square(clip, 4)
    assert seen.shape == (1, 3, 2, 4, 4)
    torch.testing.assert_close(seen[..., 1:3], torch.ones(1, 3, 2, 4, 2))
    whole = torch.rand(2, 3, 2, 8, 8)
    assert center_square(whole, 8) is whole


def test_a_clip_that_does_not_fit_is_refused():
    encoder = FrozenEncoder("x", Whole(), size=8, length=4)
    with refuses("clip-length"):
        encoder(torch.zeros(1, 3, 3, 8, 8))
    with pytest.raises(ValueError, match="a clip is"):
        encoder(torch.zeros(3, 4, 8, 8))
    with pytest.raises(ValueError, match="uint8"):
        encoder(torch.zeros(1, 3, 4, 8, 8, dtype=torch.uint8))


def test_the_fingerprint_is_of_weights_and_of_what_is_looked_at():
    torch.manual_seed(0)
    body = Compact((4, 4, 4, 8))
    one = FrozenEncoder("one", body, size=56)
    assert FrozenEncoder("two", body, size=56).fingerprint == one.fingerprint
    assert FrozenEncoder("one", body, size=28).fingerprint != one.fingerprint
    assert FrozenEncoder("one", body, size=56, mean=(0.4, 0.5, 0.5)).fingerprint != one.fingerprint
    with torch.no_grad():
        next(body.parameters())[0, 0, 0, 0, 0] += 1e-3
    assert FrozenEncoder("one", body, size=56).fingerprint != one.fingerprint


def test_the_built_in_encoder_holds_still():
    encoder = make("veil")
    assert (encoder.name, encoder.dim, encoder.length, encoder.size) == ("veil", 256, 16, 56)
    assert SHIPPED.stat().st_size < 4e6
    encoder.train()
    assert not any(module.training for module in encoder.modules())
    assert not any(p.requires_grad for p in encoder.parameters())
    clip = torch.rand(3, 3, 16, 56, 56)
    tokens, pooled = encoder(clip), encoder.pooled(clip)
    assert tokens.shape == (3, 64, 256) and pooled.shape == (3, 256) and not pooled.requires_grad
    assert pooled.isfinite().all() and pooled.std(0).max() > 0
    torch.testing.assert_close(pooled, tokens.mean(1))
    torch.testing.assert_close(encoder.pooled(clip), pooled)
    alone = torch.cat([encoder.pooled(one[None]) for one in clip])
    torch.testing.assert_close(alone, pooled, rtol=1e-4, atol=1e-5)  # no clip knows of its neighbours
    assert make("veil").fingerprint == encoder.fingerprint


def test_half_precision_gives_nearly_the_same(tmp_path):
    encoder, clip = make("veil"), torch.rand(2, 3, 16, 56, 56)
    half = make("veil").bfloat16().pooled(clip)
    assert half.dtype == torch.float32
    assert F.cosine_similarity(half, encoder.pooled(clip)).min() > 0.99
    # The same numbers in 32 bits are the same encoder.
    tensors = {name: value.float() for name, value in load_file(SHIPPED).items()}
    from safetensors import safe_open

    with safe_open(SHIPPED, "pt") as file:
        save_file(tensors, tmp_path / "wide.safetensors", file.metadata())
    assert make("veil", tmp_path / "wide.safetensors").fingerprint == encoder.fingerprint
    save_file(tensors, tmp_path / "bare.safetensors")
    with refuses("encoder-metadata"):
        make("veil", tmp_path / "bare.safetensors")


def test_filling_in_predicts_the_pixels_of_a_token():
    x = torch.rand(1, 3, 16, 56, 56)
    found = patches(x, 64)
    assert found.shape == (1, 64, EncoderHeads(8, 2).fill.out_features)
    coarse = F.adaptive_avg_pool3d(x, (16, 16, 16))
    t, y, w = 2, 1, 3
    own = coarse[0, :, 4 * t : 4 * t + 4, 4 * y : 4 * y + 4, 4 * w : 4 * w + 4]
    torch.testing.assert_close(found[0, 16 * t + 4 * y + w], own.permute(1, 2, 3, 0).flatten())


TINY = (
    "data.identities=4", "data.size=28", "encoder.widths=[4, 4, 8, 16]", "data.clips=4", "data.untrimmed=2",
    "data.surveillance=4", "data.gait=4", "data.gait_alike=4", "data.stills=4", "data.max_frames=16",
    "data.held_out=2", "data.batch=16", "schedule.steps=2",
)  # fmt: skip


@pytest.fixture
def tiny(tmp_path) -> EncoderRecipe:
    (tmp_path / "encoder.toml").write_text('method = "encoder"\n')
    return config.read(tmp_path / "encoder.toml", EncoderRecipe, TINY)


def test_the_recipe_takes_two_steps_and_its_run_is_an_encoder(tmp_path, tiny):
    training = tiny.training(torch.device("cpu"), 1)
    for a, b in zip(training.batch(1)[:8], training.batch(1)[:8], strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
    assert not torch.equal(training.batch(0).clips, training.batch(1).clips)
    before = {name: value.clone() for name, value in training.weights().items()}
    for number in range(2):
        terms = training.phases.train_step(training.batch(number)).terms
        assert len(terms) == 8 and all(value.isfinite() for value in terms.values())
    assert any(not torch.equal(value, before[name]) for name, value in training.weights().items())
    found = training.check()
    assert all(0 <= value <= 1 for value in found.values()) and "val" in found
    weights = train(tmp_path / "encoder.toml", tmp_path / "run", sets=TINY, device="cpu")
    encoder = make(tmp_path / "run")
    assert (encoder.dim, encoder.size, encoder.length) == (16, 28, 16)
    own = load_file(weights)
    assert all(torch.equal(value, own[name]) for name, value in encoder.body.state_dict().items())


def test_batches_have_only_known_labels(tiny):
    pools = tiny.data.pools(torch.device("cpu"))
    batch = sample_batch(pools, 32, 7)
    kinds = [kind for kind, share in (("clips", 6), ("untrimmed", 3), ("surveillance", 2), ("gait", 1), ("gait-alike", 3), ("stills", 1)) for _ in range(2 * share)]  # fmt: skip
    assert len(batch.clips) == 32 and batch.pairs == 6
    one, two = slice(0, 6), slice(6, 12)
    assert torch.equal(batch.identity[one], batch.identity[two])  # views of the same videos
    still = (batch.clips == batch.clips[:, :1]).flatten(1).all(1)
    for row, kind in enumerate(kinds):
        assert (batch.moments[row, 0] >= 0) == (kind in ("clips", "untrimmed") and not still[row])
        assert (batch.identity[row] >= 0) == (kind in ("clips", "untrimmed", "gait"))
        assert (batch.walk[row] >= 0) == (kind == "gait-alike")
        assert batch.attributes[row].isnan().any() == (kind in ("surveillance", "gait-alike"))
        assert kind == "surveillance" or batch.anomaly[row] == -1


def test_a_recognizer_becomes_an_encoder_with_its_standardisation(tmp_path):
    data = {"target": "action", "size": 28, "max_frames": 8, "length": 4}
    net = video.make("small3d", 5, frames=4, size=28).eval()
    metadata = {"mean": json.dumps([0.4, 0.5, 0.6]), "std": json.dumps([0.2, 0.25, 0.3])}

    def run(
        name: str, kind: str = "recognize", metadata: dict[str, str] | None = metadata, sees: str = "clips"
    ) -> Path:
        recipe = {"data": data, "utility": {"network": "small3d", "sees": sees}}
        made = Run.create(tmp_path / name, recipe, kind)
        tensors = {key: value.contiguous() for key, value in net.state_dict().items()}
        save_file(tensors, tmp_path / name / "weights.safetensors", metadata)
        made.finish()
        return tmp_path / name

    encoder = make(run("good"))
    assert (encoder.name, encoder.dim, encoder.length, encoder.size) == ("good", 96, 8, 28)
    clip = torch.rand(2, 3, 8, 28, 28)
    mean, std = (
        torch.tensor([0.4, 0.5, 0.6]).view(3, 1, 1, 1),
        torch.tensor([0.2, 0.25, 0.3]).view(3, 1, 1, 1),
    )
    with torch.no_grad():  # of eight frames it was trained on every second
        torch.testing.assert_close(encoder.pooled(clip), net.features((clip[:, :, ::2] - mean) / std))
    with refuses("run-not-of-clips"):
        make(run("frames", sees="frames"))
    with refuses("run-kind"):
        make(run("spact", kind="spact"))
    with refuses("encoder-metadata"):
        make(run("old", metadata=None))
    with refuses("run-has-weights"):
        make(tmp_path / "good", weights="x.pth")


def test_training_a_recognizer_stores_its_standardisation(tmp_path):
    (tmp_path / "recipe.toml").write_text(
        'method = "recognize"\n[data]\nsize = 16\nmax_frames = 4\nlength = 2\nbatch = 8\noptions = { count = 60 }\n'
        '[utility]\nnetwork = "small3d"\n[schedule]\nsteps = 2\n'
    )
    train(tmp_path / "recipe.toml", tmp_path / "run", device="cpu")
    encoder = make(tmp_path / "run")
    assert (encoder.length, encoder.every, encoder.dim) == (4, 2, 96)
    assert 0.1 < float(encoder.mean.mean()) < 0.9 and float(encoder.std.min()) > 0
