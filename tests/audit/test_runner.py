"""The runner of an audit: what is measured by which evaluator, and what is refused."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from errors import refuses
from veil.audit import command, evaluators, report
from veil.audit.audit_data import AuditData
from veil.audit.evaluator import Evaluator, MethodVideos
from veil.audit.experiment import Anonymize, ExperimentData, SplitVideos
from veil.audit.novelty import not_novel
from veil.audit.recognition import RecognizerSpec, TrainingBudget
from veil.audit.recognizer_training import RecognizerBatches, train_recognizer
from veil.audit.reconstruction import ReconstructionBudget
from veil.audit.result import UNDERFITTED_NOTE, Row
from veil.audit.runner import run_audit
from veil.audit.suites import SUITES, Suite
from veil.audit.videos import anonymized, gather, round_trip
from veil.core import VeilError
from veil.data import Dataset, Sample, read
from veil.data.frames import square
from veil.data.sample import narrowed
from veil.methods import learned, make
from veil.methods.spact import SPActRecipe
from veil.nn.image import IMAGE_NETS
from veil.nn.video import VIDEO_NETS
from veil.training import config

TINY = Suite(
    about="to see that it runs",
    size=32,
    frames=4,
    videos=60,
    seeds=2,
    utility=(RecognizerSpec("small3d", "clips"),),
    attackers=(RecognizerSpec("small2d", "frames"), RecognizerSpec("small3d", "motion")),
    budgets={
        sees: TrainingBudget(steps=3, rounds=1, batch=8, clip_length=4)
        for sees in ("frames", "clips", "motion")
    },
    reconstruction=ReconstructionBudget(steps=2, batch=4, width=4),
)
pytestmark = pytest.mark.usefixtures("rendered_once")


@pytest.fixture(scope="module")
def world() -> Dataset:
    """A few videos of the synthetic dataset."""
    return read("synthetic", count=60, size=32)


@pytest.fixture(autouse=True)
def alone(monkeypatch, tmp_path):
    """Nothing of this user's is read or written."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.slow
def test_every_evaluator_measures_every_target(world):
    (result,) = run_audit({"blur": make("blur:region=frame")}, AuditData(world), TINY)
    measured = {(row.role, row.target, row.by, row.knowledge, row.encoding) for row in result.rows}
    assert ("utility", "action", "small3d on clips", "adaptive", "8-bit") in measured
    assert ("utility", "action", "small3d on clips", "oblivious", "8-bit") in measured
    for target in ("identity", "attributes"):
        for by in ("small2d on frames", "small3d on motion"):
            for knowledge in ("oblivious", "adaptive", "reconstruction"):
                assert ("leakage", target, by, knowledge, "8-bit") in measured
            assert ("leakage", target, by, "adaptive", "h264") in measured
        assert ("leakage", target, "small2d on one frame", "adaptive", "8-bit") in measured
    assert all(len(row.values) == 2 and len(row.train_loss) == 2 for row in result.rows)  # two seeds
    assert {row.role for row in result.rows} == {"utility", "leakage", "bias"}
    bias = next(row for row in result.rows if row.role == "bias")
    assert bias.parts.keys() == {"female", "male"}
    assert {row.key[:4] for row in result.raw} == {row.key[:4] for row in result.rows}
    attributes = next(row for row in result.rows if row.target == "attributes")
    assert attributes.parts.keys() == set(world.attributes)
    picture = result.pictures[0]
    assert picture.reconstructed is not None
    assert picture.raw.shape == picture.anonymized.shape == picture.reconstructed.shape == (32, 32, 3)
    test = [sample for sample in world.samples if sample.split == "test"]
    assert np.array_equal(
        picture.anonymized, anonymized(make("blur:region=frame"), world.frames(test[0]))[10]
    )


def test_a_question_is_added_by_one_line_in_the_list(world, monkeypatch):
    """An evaluator of flipped video: the runner is not edited."""

    def prepare(videos: MethodVideos) -> SplitVideos:
        return {split: replace(part, frames=part.frames.flip(3)) for split, part in videos.anonymized.items()}

    def evaluate(anonymize: Anonymize, data: ExperimentData) -> list[Row]:
        rows = data.rows(data.on_raw, anonymize, "oblivious")
        return [replace(row, protocol="flipped") for row in rows]

    flipped = Evaluator("flipped", prepare, evaluate)
    monkeypatch.setattr(evaluators, "EVALUATORS", (*evaluators.EVALUATORS, flipped))
    suite = replace(TINY, seeds=1, knowledge=("oblivious",), encodings=("8-bit",))
    (result,) = run_audit({"down": make("downsample")}, AuditData(world), suite)
    measured = {row.key[1:4] for row in result.rows if row.protocol == "flipped"}
    plain = {row.key[1:4] for row in result.rows if row.protocol != "flipped"}
    assert {(target, by) for target, _, by in measured} == {(target, by) for target, _, by in plain}


def test_adding_a_method_costs_one_method(world, tmp_path, monkeypatch):
    suite = replace(TINY, seeds=1, encodings=("8-bit",), knowledge=("oblivious", "adaptive"))
    first = run_audit({"blur": make("blur:region=frame")}, AuditData(world), suite, cache=tmp_path)
    trained = []
    monkeypatch.setattr(
        "veil.audit.experiment.train_recognizer",
        lambda *args, **how: trained.append(args[:2]) or train_recognizer(*args, **how),
    )
    again = run_audit(
        {"soft": make("blur:region=frame"), "raw": None, "down": make("downsample")},
        AuditData(world),
        suite,
        cache=tmp_path,
    )
    assert again[0].method == "soft" and again[0].rows == first[0].rows
    assert np.array_equal(again[0].pictures[0].anonymized, first[0].pictures[0].anonymized)
    assert again[1].rows == first[0].raw
    assert (
        len(trained) == 5
    )  # the adaptive recognizers of one method: one utility, two attackers on two targets
    for path in tmp_path.glob("*.safetensors"):
        path.write_bytes(path.read_bytes()[:100])  # half of a file is no file
    for path in tmp_path.glob("result-*"):
        path.unlink()
    assert run_audit({"raw": None}, AuditData(world), suite, cache=tmp_path)[0].rows == first[0].raw


@pytest.mark.slow
def test_a_kernel_is_evaluated_alike_and_cached(world, tmp_path, monkeypatch):
    attackers = tuple(RecognizerSpec("kernel", sees) for sees in ("frames", "clips", "motion"))
    suite = replace(TINY, seeds=1, utility=(), attackers=attackers, frames_only=("attributes",))
    method = {"blur": make("blur:region=frame")}
    (first,) = run_audit(method, AuditData(world), suite, cache=tmp_path)
    measured = {(row.target, row.by, row.knowledge, row.encoding) for row in first.rows}
    how = (("oblivious", "8-bit"), ("adaptive", "8-bit"), ("adaptive", "h264"), ("reconstruction", "8-bit"))
    by = [("identity", f"kernel on {what}") for what in ("frames", "one frame", "clips", "motion")]
    by += [("attributes", f"kernel on {what}") for what in ("frames", "one frame")]
    assert measured == {(*question, *knowledge) for question in by for knowledge in how}
    assert not any(note.startswith(UNDERFITTED_NOTE) for row in first.rows for note in row.notes)
    for path in tmp_path.glob("result-*"):
        path.unlink()
    trained = []
    monkeypatch.setattr(
        "veil.audit.experiment.train_recognizer",
        lambda *args, **how: trained.append(args[0]) or train_recognizer(*args, **how),
    )
    (again,) = run_audit(method, AuditData(world), suite, cache=tmp_path)
    same, before = ([row for row in one.rows if row.encoding != "h264"] for one in (again, first))
    assert same == before and again.raw == first.raw  # the encoder is not the same twice
    assert len(trained) == 4 * 3  # adaptive, h264, reconstruction; those of raw video were cached


@pytest.mark.slow
def test_several_at_once_find_the_same(world):
    suite = replace(TINY, seeds=1, attackers=TINY.attackers[:1], encodings=("8-bit",))
    one, two = (
        run_audit({"down": make("downsample")}, AuditData(world), suite, jobs=jobs)[0] for jobs in (1, 2)
    )
    assert sorted(one.rows, key=str) == sorted(two.rows, key=str)


def test_cross_dataset(world):
    stills = read("synthetic", kind="stills", count=60, size=32)
    suite = replace(TINY, seeds=1)
    (result,) = run_audit({"down": make("downsample")}, AuditData(world, stills), suite)
    assert result.targets("utility") == ["action"] and result.targets("leakage") == ["attributes"]
    leak = result.headline("leakage", "attributes")
    assert leak is not None
    assert leak.protocol == "cross-dataset: synthetic-stills" and "on frames" in leak.by
    assert any("identity" in sentence for sentence in result.untested)


def test_gait_is_retrieved(world):
    walks = read("synthetic", kind="gait", count=160, size=32)
    suite = replace(
        TINY,
        seeds=1,
        knowledge=("adaptive",),
        encodings=("8-bit",),
        attackers=(RecognizerSpec("small3d", "clips"),),
    )
    (result,) = run_audit({"down": make("downsample")}, AuditData(walks), suite)
    found = {row.metric for row in result.rows if row.protocol == "gait retrieval: synthetic-gait"}
    assert found == {"rank-1", "rank-1, identical view excluded"}


def test_unseen_identities_are_retrieved_and_never_classified():
    """People who are in no training video, as in CASIA-B: the gallery is among the test videos."""
    rng = np.random.default_rng(0)
    looks = rng.integers(0, 256, (12, 1, 32, 32, 3))
    samples = [
        Sample(
            f"{person}-{walk}",
            "train" if person < 6 else "val" if person < 8 else "test",
            identity=person,
            groups={"role": "gallery" if walk < 4 else "probe", "view": str(walk % 2)},
        )
        for person in range(12)
        for walk in range(6)
    ]

    def frames(sample: Sample) -> np.ndarray:
        assert sample.identity is not None
        return np.repeat(looks[sample.identity], 4, 0).astype(np.uint8)

    walks = Dataset("walks", samples, frames, identities=tuple(map(str, range(12))))
    suite = replace(
        TINY, seeds=1, knowledge=("adaptive",), encodings=("8-bit",), attackers=TINY.attackers[:1]
    )
    (result,) = run_audit({"raw": None}, AuditData(walks), suite)
    assert {row.metric for row in result.rows} == {"rank-1", "rank-1, identical view excluded"}
    assert all(row.value == 1 and row.n == 8 and row.chance == 0.25 for row in result.rows)


def test_only_novel_labels(world):
    few = narrowed(world, world.actions[6:], world.attributes[5:])
    assert few.actions == world.actions[6:] and few.attributes == world.attributes[5:]
    by_id = {sample.id: sample for sample in world.samples}
    for sample in few.samples:
        before = by_id[sample.id]
        assert sample.action is not None and before.action is not None
        assert few.actions[sample.action] == world.actions[before.action]
        assert sample.attributes == before.attributes[5:]
    with refuses("label-unknown"):
        narrowed(world, ["fly"], [])


def test_what_the_encoder_leaves_is_what_a_file_holds(world):
    frames = world.frames(world.samples[0])
    back = round_trip(frames)
    assert back.shape == frames.shape and not np.array_equal(back, frames)
    assert np.abs(back.astype(int) - frames).mean() < 12
    assert square(np.zeros((2, 30, 60, 3), np.uint8), 16).shape == (2, 16, 16, 3)
    assert np.array_equal(square(frames, 32), frames)


def test_batches_are_functions_of_their_number(world):
    videos = gather(world, None, size=32, frames=4)
    batches = [
        RecognizerBatches(
            RecognizerSpec("small3d", "clips"),
            videos.frames,
            videos.truth("action"),
            TrainingBudget(batch=8, clip_length=3),
            1,
            True,
        )
        for _ in range(2)
    ]
    in_order = [batches[0](number) for number in range(30)]
    for number in (29, 3, 12):
        assert all(torch.equal(a, b) for a, b in zip(batches[1](number), in_order[number], strict=True))
    seen = torch.cat([batches[0]._order(0), batches[0]._order(1)])
    assert torch.bincount(seen).tolist() == [2] * len(videos)


def test_a_recognizer_that_did_not_fit_is_underfitted(world):
    videos = gather(world, None, size=32, frames=4)
    train, val = videos.split("train"), videos.split("val")
    few = train_recognizer(
        RecognizerSpec("small2d", "frames"),
        "identity",
        train,
        val,
        budget=TrainingBudget(steps=3, rounds=1, batch=8),
    )
    shares = torch.bincount(train.truth("identity")) / len(train)
    entropy = -sum(p * np.log(p) for p in shares.tolist() if p)
    assert few.underfitted and 2 < few.loss < 6 and few.constant == pytest.approx(entropy, rel=1e-3)


def test_every_recognizer_of_a_suite_is_a_network_or_solved():
    for suite in SUITES.values():
        for recognizer in (*suite.utility, *suite.attackers):
            nets = IMAGE_NETS if recognizer.input == "frames" else VIDEO_NETS
            assert recognizer.solved or recognizer.net in nets
            assert recognizer.input in suite.budgets


def test_out_of_memory_halves_the_batch(world, monkeypatch):
    sizes = []

    def short(recognizer, target, train, val, *, budget, **how):
        sizes.append(budget.batch)
        if budget.batch > 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return train_recognizer(recognizer, target, train, val, budget=budget, **how)

    monkeypatch.setattr("veil.audit.experiment.train_recognizer", short)
    suite = replace(TINY, seeds=1, attackers=(), knowledge=("adaptive",), encodings=("8-bit",))
    with pytest.warns(UserWarning, match="2"):
        run_audit({"raw": None}, AuditData(world), suite)
    assert sizes == [8, 4, 2]


@pytest.mark.parametrize(
    ("how", "value"),
    [
        ({"methods": []}, "--compare"),
        ({"methods": ["blurr"]}, "'blurr'"),
        ({"data": "utd"}, "'utd'"),
        ({"data": "utd-mhad"}, "UTD-MHAD"),
        ({"data": "utd-mhad", "root": "EMPTY"}, "EMPTY"),
        ({"options": {"kind": "nothing"}}, "'nothing'"),
        ({"seeds": 0}, "--seeds 0"),
        ({"device": "cuda:77"}, "'cuda:77'"),
        ({"device": "moon"}, "'moon'"),
        ({"weights": {"resnet": "x"}}, "'resnet'"),
        ({"weights": {"resnet18": "nowhere.pth"}}, "nowhere.pth"),
        ({"actions": ("fly",)}, "'fly'"),
        ({"actions": ("walk", "walk")}, "walk"),
        ({"options": {"colour": 3}}, "'colour'"),
        ({"options": {"count": "x"}}, "'x'"),
        ({"methods": ["EMPTY"]}, "EMPTY"),
    ],
)
def test_bad_input_is_one_sentence_with_the_value(how, value, tmp_path):
    (tmp_path / "EMPTY").mkdir()
    plain = json.loads(json.dumps(how).replace("EMPTY", str(tmp_path / "EMPTY")))
    methods = plain.pop("methods", ["blur"])
    with pytest.raises(VeilError) as caught:
        command.audit_methods(methods, tmp_path / "out", suite="quick", **plain)
    assert value.replace("EMPTY", str(tmp_path / "EMPTY")) in str(caught.value)
    assert "\n" not in str(caught.value) and not (tmp_path / "out").exists()


def test_labels_that_a_protocol_needs(tmp_path):
    blank = np.zeros((4, 8, 8, 3), np.uint8)
    samples = [Sample(f"v{i}", ("train", "val", "test")[i % 3]) for i in range(9)]
    with refuses("audit-unlabelled"):
        run_audit({"raw": None}, AuditData(Dataset("mute", samples, lambda sample: blank)), TINY)
    unseen = [Sample(f"v{i}", ("train", "val", "test")[i % 3], action=i % 2, identity=i) for i in range(30)]
    some = Dataset("unseen", unseen, lambda sample: blank, ("a", "b"), identities=tuple(map(str, range(30))))
    assert [target for _, _, target, _ in AuditData(some).questions()] == ["action"]
    only = [Sample(f"v{i}", "train", action=i % 2) for i in range(9)]
    with refuses("audit-unlabelled"):
        run_audit({"raw": None}, AuditData(Dataset("untested", only, lambda sample: blank, ("a", "b"))), TINY)


def test_chosen_labels_are_never_left_out():
    blank = np.zeros((4, 8, 8, 3), np.uint8)
    samples = [
        Sample(
            f"v{i}", ("train", "val", "test")[i % 3], action=i // 3, identity=i // 3 % 2, attributes=(1.0,)
        )
        for i in range(12)
    ]
    samples[-1] = replace(samples[-1], split="train")  # so that of c and d, c alone is tested
    some = Dataset("some", samples, lambda sample: blank, tuple("abcd"), ("old",), ("x", "y"))
    with refuses("audit-labels-missing"):
        AuditData(some, actions=("c", "d")).questions()
    with refuses("audit-labels-missing"):
        AuditData(some, attributes=("old",)).questions()
    assert [target for _, _, target, _ in AuditData(some).questions()] == ["action", "identity"]


def trained(folder: Path, **labels: list[str]) -> Path:
    """The run of a method that was trained with these actions and attributes; what it learned does not matter."""
    plain = {"anonymizer": {"width": 4}, "data": {"name": "synthetic", "actions": labels.get("actions", [])}}
    if attributes := labels.get("attributes"):
        plain["data"]["private"] = {"name": "synthetic", "attributes": attributes}
    recipe = config.checked(plain, SPActRecipe, str)
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps({"kind": "spact", "recipe": config.as_dict(recipe)}))
    save_file(recipe.network().state_dict(), folder / "weights.safetensors")
    return folder


def test_the_report_states_what_a_run_was_trained_with(world, tmp_path):
    suite = replace(TINY, seeds=1, attackers=(), knowledge=("adaptive",), encodings=("8-bit",))
    run = trained(tmp_path / "run", actions=["walk", "run"], attributes=["female"])
    narrow = AuditData(world, actions=("run", "wave"), attributes=("tall", "heavy", "tattoo"))
    for _ in ("found", "kept"):
        (result,) = run_audit({"run": make(str(run))}, narrow, suite, cache=tmp_path / "cached")
        assert result.settings["trained with"] == {"actions": ["walk", "run"], "attributes": ["female"]}
        assert result.untested[0] == "Novel actions alone: the run was trained with run."
        assert not any("Novel attributes" in sentence for sentence in result.untested)
    page = report.write([result], tmp_path).html.read_text()
    assert "Novel actions alone: the run was trained with run." in page and "walk, run" in page


def test_novel_is_what_a_run_was_not_trained_with(world, tmp_path):
    def sentences(name: str, data: AuditData, **labels: list[str]) -> list[str]:
        config_ = learned.load(trained(tmp_path / name, **labels)).made[1]
        return [*not_novel(config_, data)]

    everything, some = AuditData(world), AuditData(world, actions=("wave", "clap"))
    assert sentences("all", everything) == [], "known labels, as usual"
    assert sentences("all on some", some) == ["Novel actions alone: the run was trained with wave, clap."]
    assert sentences("others", some, actions=["walk", "run"]) == []
    assert sentences("few", everything, actions=["walk", "run"], attributes=["tall"]) == [
        "Novel actions alone: the run was trained with walk, run.",
        "Novel attributes alone: the run was trained with tall.",
    ]


@pytest.mark.slow
def test_the_command_writes_a_report(tmp_path, monkeypatch):
    monkeypatch.setitem(
        SUITES, "quick", replace(TINY, seeds=1, encodings=("8-bit",), knowledge=("oblivious", "adaptive"))
    )
    page, sentences = command.audit_methods(
        ["raw", "downsample:factor=8"], tmp_path / "out", suite="quick", device="cpu", jobs=1
    )
    assert page == tmp_path / "out" / "audit.html" and page.exists()
    assert sentences[1].startswith("downsample:factor=8: ")
    written = json.loads((tmp_path / "out" / "audit.json").read_text())
    assert [result["method"] for result in written["results"]] == ["raw", "downsample:factor=8"]
    assert Path(tmp_path / "cache" / "veil" / "audit").is_dir()
