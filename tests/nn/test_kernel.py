"""Kernel ridge regression: its closed form, what it can learn, and its output where there is nothing to learn."""

import math

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from errors import refuses
from veil.audit import recognition as recognize
from veil.audit.recognition import RecognizerSpec, TrainedRecognizer, TrainingBudget
from veil.audit.recognizer_training import train_recognizer
from veil.audit.videos import Videos
from veil.data import Sample
from veil.nn.kernel import GAMMAS, RIDGES, KernelClassifier

SPLITS = ("train", "train", "train", "val", "test")
BUDGET = TrainingBudget(batch=16, clip_length=4)
CLIPS = RecognizerSpec("kernel", "clips")


@pytest.fixture(autouse=True)
def alone():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def dots(x: Tensor) -> Tensor:
    """Numbers ``(V, E, D)`` as images of one pixel a number ``(V E, D, 1, 1)``."""
    return x.flatten(0, 1)[:, :, None, None]


def solved(x: Tensor, y: Tensor, choice: int, each: int = 1) -> KernelClassifier:
    """The kernel with one of its solutions for x ``(N, D)``, ``each`` of them together."""
    net = KernelClassifier(y.shape[1])
    solutions = net.solutions(x.unflatten(0, (-1, each)), y)
    for _ in range(choice + 1):
        next(solutions)
    return net


def labelled(frames: np.ndarray, **labels: list) -> Videos:
    """Videos ``(N, F, H, W, 3)`` with the labels of each, in turn for training, validation and test."""
    samples = tuple(
        Sample(f"v{i}", SPLITS[i % 5], **{name: labels[name][i] for name in labels})
        for i in range(len(frames))
    )
    people = tuple(map(str, range(max(labels.get("identity", [0])) + 1)))
    attributes = tuple("abc"[: len(labels["attributes"][0])]) if "attributes" in labels else ()
    return Videos(torch.from_numpy(frames), samples, "made up", (), attributes, people)


def split(whole: Videos) -> tuple[Videos, Videos, Videos]:
    return whole.split("train"), whole.split("val"), whole.split("test")


@pytest.mark.parametrize("choice", range(len(GAMMAS) * len(RIDGES)))
def test_it_is_the_closed_form(choice):
    rng = torch.Generator().manual_seed(0)
    x, y = torch.randn(12, 5, generator=rng), torch.eye(3)[torch.arange(12) % 3]
    x[:, 4] = 7  # carries no information
    new = torch.randn(4, 5, generator=rng)
    gamma, ridge = GAMMAS[choice // len(RIDGES)], RIDGES[choice % len(RIDGES)]

    mean, deviation = x.double().mean(0), x.double().std(0, correction=0)
    a, b = (((z - mean) / deviation)[:, :4].clamp(-5, 5) for z in (x.double(), new.double()))
    pairs = [(i, j) for i in range(12) for j in range(12) if i != j]
    apart = sorted(float(sum((a[i] - a[j]) ** 2)) for i, j in pairs)
    usual = apart[(len(apart) - 1) // 2]

    def k(p: Tensor, q: Tensor) -> float:
        if gamma == 0:
            return float(p @ q) / float((a * a).sum(1).mean())
        return math.exp(-gamma * float(((p - q) ** 2).sum()) / usual)

    def answers(keep: list[int], to: Tensor) -> Tensor:
        gram = torch.tensor([[k(a[i], a[j]) for j in keep] for i in keep], dtype=torch.float64)
        alpha = torch.linalg.inv(gram + ridge * torch.eye(len(keep))) @ (y - y.mean(0)).double()[keep]
        return torch.tensor([[k(p, a[i]) for i in keep] for p in to], dtype=torch.float64) @ alpha

    net = solved(x, y, choice)
    everything = list(range(12))
    errors = [
        (y - y.mean(0))[i] - answers([j for j in everything if j != i], a[i : i + 1])[0] for i in everything
    ]
    s = torch.stack(errors).square().mean().sqrt()
    expected = (answers(everything, b) + y.mean(0) - 0.5) / s
    assert torch.allclose(net(dots(new[None])), expected.float(), atol=1e-4, rtol=1e-4)
    left = list(KernelClassifier(3).solutions(x[:, None], y))[choice]
    rest = (y - y.mean(0)) - answers(everything, a)
    assert left == pytest.approx(float(rest.square().sum() / (y - y.mean(0)).square().sum()), rel=1e-4)


def test_who_is_left_out_is_left_out_with_the_whole_video():
    """Looks at one video are alike: they must not answer for each other."""
    rng = torch.Generator().manual_seed(0)
    videos = torch.randn(20, 1, 6, generator=rng)
    looks = (videos + 0.01 * torch.randn(20, 4, 6, generator=rng)).flatten(0, 1)
    y = torch.eye(2)[torch.randint(2, (20,), generator=rng)]  # chance alone
    choice = len(RIDGES) * 3  # the narrowest kernel, the least ridge
    alone = solved(looks, y.repeat_interleave(4, 0), choice)
    together = solved(looks, y, choice, each=4)
    assert torch.equal(alone.alpha, together.alpha)
    assert float(alone.error) < 0.1 and 0.4 < float(together.error) < 1


@pytest.mark.parametrize("problem", ["xor", "line"])
def test_xor_needs_a_kernel_and_a_line_does_not(problem):
    """Each point comes with its three mirror images: of four such points a line has at most three on the right sides."""
    rng = torch.Generator().manual_seed(0)
    mirrors = torch.tensor([[1.0, 1], [1, -1], [-1, 1], [-1, -1]])
    x, new = ((0.5 + torch.rand(2, 75, 1, 2, generator=rng)) * mirrors).flatten(1, 2)
    right, expected = (((z.prod(1) if problem == "xor" else z[:, 0]) > 0).long() for z in (x, new))
    found = []
    for choice in range(len(GAMMAS) * len(RIDGES)):
        answer = solved(x, torch.eye(2)[right], choice)(dots(new[None]))
        found.append(float((answer.argmax(1) == expected).float().mean()))
    line, curved = max(found[: len(RIDGES)]), max(found[len(RIDGES) :])
    assert curved > 0.95 and (line <= 0.75 if problem == "xor" else line > 0.95), found


def test_small_frames_are_not_enlarged_and_large_ones_shrink():
    net = KernelClassifier(2)
    assert net.pixels(torch.zeros(2, 3, 4, 56, 40)).shape == (2, 3 * 4 * 16 * 16)
    small = torch.rand(2, 3, 4, 14, 10)
    assert torch.equal(net.pixels(small), small.flatten(1))
    assert net.pixels(torch.zeros(2, 3, 112, 112)).shape == (2, 3 * 256)


def noisy(count: int, frames: int = 8, size: int = 20, seed: int = 0) -> tuple[np.ndarray, list[int]]:
    """Videos of faint noise in which the brightness of a corner depends on the identity, one of three."""
    rng = np.random.default_rng(seed)
    videos = rng.normal(128, 6, (count, frames, size, size, 3))
    identity = [i % 7 % 3 for i in range(count)]
    videos[:, :, :12, :12] += np.array([-30, 0, 30])[identity][:, None, None, None, None]
    return videos.clip(0, 255).astype(np.uint8), identity


@pytest.mark.parametrize("sees", ["frames", "clips"])
def test_saved_and_restored_it_answers_the_same(sees, tmp_path):
    videos, identity = noisy(100)
    train, val, test = split(labelled(videos, identity=identity))
    trained = train_recognizer(RecognizerSpec("kernel", sees), "identity", train, val, budget=BUDGET)
    assert trained.score(test)[0].value > 0.9 and not trained.underfitted
    assert trained.constant == pytest.approx(math.log(3), abs=0.1)
    save_file(trained.tensors(), tmp_path / "kept")
    tensors = load_file(tmp_path / "kept")
    back = TrainedRecognizer.from_tensors(trained.recognizer, "identity", tensors, BUDGET, train)
    assert torch.equal(back.logits(test.frames), trained.logits(test.frames))
    assert np.array_equal(back.features(test.frames), trained.features(test.frames))
    assert (back.loss, back.constant, back.val) == (trained.loss, trained.constant, trained.val)
    again = train_recognizer(trained.recognizer, "identity", train, val, budget=BUDGET, start=trained, seed=1)
    assert torch.equal(again.logits(test.frames), trained.logits(test.frames))  # no seed, where all fit


def test_motion_is_seen_without_what_stands_still():
    """Of a still video, which is one frame over and over, no motion is left: the answer is always the same."""
    videos, identity = noisy(150)
    videos[:] = videos[:, :1]
    brighter = videos.astype(float)
    for video, person in zip(brighter, identity, strict=True):  # each brightens somewhere else
        rows = slice(6 * person, 6 * person + 6)
        video[:, rows, 8:] += 12 * (np.arange(8) - 3.5)[:, None, None, None]
    found = []
    for frames in (videos, brighter.clip(0, 255).astype(np.uint8)):
        train, val, test = split(labelled(frames, identity=identity))
        budget = TrainingBudget(batch=16, clip_length=8)
        trained = train_recognizer(RecognizerSpec("kernel", "motion"), "identity", train, val, budget=budget)
        found.append(trained.score(test)[0])
    still, moving = found
    assert still.chance is not None and still.value <= still.chance + 1e-9, still
    assert moving.value > 0.9, moving


def test_attributes():
    """Every video comes twice, with both values of the third attribute, so that nothing can be learned about it."""
    rng = np.random.default_rng(0)
    labels = np.repeat(rng.integers(0, 2, (100, 3)), 2, axis=0).astype(float)
    videos = np.repeat(rng.normal(128, 6, (100, 4, 18, 18, 3)), 2, axis=0)
    for place in range(2):
        corner = slice(6 * place, 6 * place + 6)
        videos[:, :, corner, corner] += 40 * labels[:, place][:, None, None, None, None]
    labels[:, 2] = np.arange(200) % 2
    order = [10 * (i // 10) + 2 * (i % 5) + i // 5 % 2 for i in range(200)]  # both of a pair in one part
    videos, labels = videos[order].clip(0, 255).astype(np.uint8), labels[order]
    train, val, test = split(labelled(videos, attributes=[tuple(row) for row in labels]))
    trained = train_recognizer(CLIPS, "attributes", train, val, budget=BUDGET)
    _, parts = trained.score(test)
    assert parts["a"][0] > 0.9 and parts["b"][0] > 0.9 and parts["c"][0] < 0.6
    likely = trained.probabilities(test.frames).mean(1)
    right = test.truth("attributes").numpy()
    assert likely[right[:, 0] == 1, 0].mean() > 0.6 > 0.4 > likely[right[:, 0] == 0, 0].mean()
    assert abs(likely[:, 2].mean() - 0.5) < 0.1


def test_somebody_who_is_missing_in_training_is_never_named():
    videos, identity = noisy(100)
    whole = labelled(videos, identity=identity)
    train, val, test = split(whole)
    train = train.of(lambda sample: sample.identity != 1)
    trained = train_recognizer(CLIPS, "identity", train, val, budget=BUDGET)
    logits = trained.logits(test.frames)
    assert logits.shape[-1] == 3 and torch.isfinite(logits).all()
    assert not (logits.mean(1).argmax(1) == 1).any()
    known = test.truth("identity") != 1
    assert (logits.mean(1).argmax(1) == test.truth("identity"))[known].float().mean() > 0.9


def test_a_single_frame():
    videos, identity = noisy(150, frames=1, size=12)
    train, val, test = split(labelled(videos, identity=identity))
    for sees in ("frames", "clips"):
        trained = train_recognizer(RecognizerSpec("kernel", sees), "identity", train, val, budget=BUDGET)
        assert trained.logits(test.frames).shape == (30, 1, 3)
        assert trained.score(test)[0].value > 0.9


@pytest.mark.parametrize("target", ["identity", "attributes"])
@pytest.mark.parametrize("sees", ["frames", "clips", "motion"])
def test_blackened_video_is_answered_by_chance(target, sees):
    black = np.zeros((60, 4, 12, 12, 3), np.uint8)
    identity = [i % 7 % 3 for i in range(60)]
    labels = (
        {"identity": identity}
        if target == "identity"
        else {"attributes": [(i % 2.0, i // 2 % 2.0) for i in identity]}
    )
    train, val, test = split(labelled(black, **labels))
    trained = train_recognizer(RecognizerSpec("kernel", sees), target, train, val, budget=BUDGET)
    answers = trained.probabilities(test.frames)
    assert np.isfinite(answers).all() and np.ptp(answers, axis=0).max() == 0  # one and the same
    score, _ = trained.score(test)
    assert score.chance is not None and score.value <= score.chance + 1e-9
    assert trained.underfitted and trained.loss == pytest.approx(trained.constant, rel=1e-3)


def test_too_many_samples_are_sampled_by_the_seed(monkeypatch):
    videos, identity = noisy(100)  # 60 for training
    train, val, _ = split(labelled(videos, identity=identity))
    frames = RecognizerSpec("kernel", "frames")
    budget = TrainingBudget(batch=16, views=8)

    def learned(most: int, seed: int = 0) -> KernelClassifier:
        monkeypatch.setattr(recognize, "MAX_SAMPLES", most)
        net = train_recognizer(frames, "identity", train, val, budget=budget, seed=seed).net
        assert isinstance(net, KernelClassifier)
        return net

    assert len(learned(6000).points) == 480
    assert len(learned(130).points) == 120  # two looks of each
    assert len(learned(40).points) == 40
    assert torch.equal(learned(130).points, learned(130).points)
    assert not torch.equal(learned(130).points, learned(130, seed=1).points)


def test_it_takes_no_weights():
    videos, identity = noisy(50)
    train, val, _ = split(labelled(videos, identity=identity))
    with refuses("audit-weights-unused"):
        train_recognizer(CLIPS, "identity", train, val, budget=BUDGET, weights="kernel.pth")


def faint(people: int = 6, videos: int = 240, frames: int = 8, size: int = 32) -> Videos:
    """A cloudy texture that jumps about at random, and in a corner a pattern for each person, one grey level strong."""
    rng = np.random.default_rng(0)
    patterns = np.sign(rng.normal(size=(people, 8, 8)))
    far = np.fft.fftfreq(size)
    smooth = np.exp(-150 * (far[:, None, None] ** 2 + far[None, :, None] ** 2))
    made = np.empty((videos, frames, size, size, 3))
    identity = [i // 5 % people for i in range(videos)]
    for video, person in zip(made, identity, strict=True):
        cloud = np.fft.ifft2(
            np.fft.fft2(rng.normal(size=(size, size, 3)), axes=(0, 1)) * smooth, axes=(0, 1)
        ).real
        cloud *= 35 / cloud.std()
        for frame in video:
            frame[:] = 128 + np.roll(cloud, rng.integers(-10, 11, 2), (0, 1))
        video[:, :8, :8] += patterns[person][:, :, None]
    made += rng.normal(0, 1, made.shape)
    return labelled(np.rint(made).clip(0, 255).astype(np.uint8), identity=identity)


@pytest.mark.slow
def test_what_is_faint_and_stays_in_one_place_is_found_by_the_kernel_alone():
    """The reason for it: networks that look for what survives a shift overlook such a cue."""
    train, val, test = split(faint())
    found = {}
    for recognizer, budget in (
        (RecognizerSpec("kernel", "frames"), TrainingBudget(batch=16)),
        (RecognizerSpec("small2d", "frames"), TrainingBudget(steps=120, rounds=1, batch=24, lr=3e-3)),
        (
            RecognizerSpec("small3d", "clips"),
            TrainingBudget(steps=50, rounds=1, batch=24, lr=3e-3, clip_length=8),
        ),
    ):
        trained = train_recognizer(recognizer, "identity", train, val, budget=budget)
        found[str(recognizer)] = trained.score(test)[0].value
    assert found["kernel on frames"] > 0.9, found
    assert found["small2d on frames"] < 0.45 and found["small3d on clips"] < 0.45, found  # chance: 1/6


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_it_answers_the_same():
    videos, identity = noisy(100)
    train, val, test = split(labelled(videos, identity=identity))
    one, two = (
        train_recognizer(CLIPS, "identity", train, val, budget=BUDGET, device=where)
        for where in ("cpu", "cuda")
    )
    again = train_recognizer(CLIPS, "identity", train, val, budget=BUDGET, device="cuda")
    assert torch.equal(two.logits(test.frames), again.logits(test.frames))
    assert torch.allclose(one.logits(test.frames), two.logits(test.frames), atol=1e-3)
