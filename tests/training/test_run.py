"""Run folders: a run goes on exactly where it was killed, and a bad folder is one sentence."""

import json
import multiprocessing
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from veil.core import VeilError
from veil.media.draft import Draft
from veil.training.fit import LRSchedule, Phase, Setup, Step, Terms, fit
from veil.training.run import Run

RECIPE = {"optim": {"lr": 0.01, "betas": (0.9, 0.99)}, "steps": 60}
SETUP = Setup(seed=3, accumulate=2, clip=1.0, ema=0.9)


def batch(step: int) -> Tensor:
    return torch.randn(8, 6, generator=torch.Generator().manual_seed(step))


def game(setup: Setup = SETUP, width: int = 8) -> Phase[Tensor]:
    """Everything that a resumed run could get wrong: dropout, batch statistics, momenta, schedules, averages."""
    torch.manual_seed(0)
    hides = nn.Sequential(nn.Linear(6, width), nn.BatchNorm1d(width), nn.Dropout(0.4), nn.Linear(width, 6))
    sees = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.2), nn.Linear(8, 1))

    def hide(x: Tensor) -> Terms:
        hidden = hides(x)
        return {"keep": +F.mse_loss(hidden, x), "budget": -0.1 * sees(hidden).square().mean()}

    def see(x: Tensor) -> Terms:
        return {"task": F.mse_loss(sees(hides(x)), x[:, :1])}

    cosine = LRSchedule(warmup=3, shape="cosine", updates=20)
    moves = [
        Step("hide", (hides,), hide, lr=0.01, weight_decay=0.1, schedule=cosine),
        Step("see", (sees,), see, lr=0.05, batch_stats=(hides,)),
    ]
    return Phase(moves, setup)


def train(folder: Path, steps: int, every: int = 5) -> None:
    """Begin a run, or go on with it."""
    begun = (folder / "run.json").exists()
    run = Run.open(folder, recipe=RECIPE, kind="test") if begun else Run.create(folder, RECIPE, "test", 3)
    played = game()
    start = run.load(played)
    for measured in fit(played, map(batch, range(start + 1, steps + 1))):
        run.log(measured)
        if measured.step % 7 == 0:
            run.log({"score": float(measured.step)}, measured.step)
        if measured.step % every == 0:
            run.save(played, best=measured.step == 15)
    run.finish()


@pytest.fixture
def begun(tmp_path) -> Path:
    """A run that was stopped after 12 steps, with checkpoints of 5 and 10."""
    with Run.create(tmp_path / "run", RECIPE, "test", 3) as run:
        played = game()
        for measured in fit(played, map(batch, range(1, 13))):
            run.log(measured)
            if measured.step in (5, 10):
                run.save(played, best=measured.step == 5)
    return tmp_path / "run"


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


# Going on


def drive(folder: Path) -> None:
    """Kill a run at random moments until it is through; one import of torch serves all its processes."""
    torch.set_num_threads(1)
    game().train_step(batch(1))  # loads what torch loads late
    processes = multiprocessing.get_context("fork")
    chance, moments, log = random.Random(), [], folder / "killed" / "log.jsonl"

    def length() -> int:
        return log.read_bytes().count(b"\n") if log.exists() else 0

    while True:
        process = processes.Process(target=train, args=(folder / "killed", 60, 4))
        process.start()
        enough = length() + chance.randint(0, 12)
        while process.is_alive() and (length() < enough or len(moments) >= 12):
            time.sleep(0.001)
        time.sleep(chance.uniform(0, 0.01))
        process.kill()
        process.join()
        if process.exitcode == 0:
            break
        moments.append(length())
    process = processes.Process(target=train, args=(folder / "through", 60, 4))
    process.start()
    process.join()
    print(json.dumps({"moments": moments, "code": process.exitcode}))


def test_what_one_left_that_was_killed_at_its_end_goes(begun):
    (begun / ".veil-000000000000.json").touch()
    with Run.open(begun) as run:
        run.finish()
    assert not [name for name in names(begun) if ".veil-" in name]


@pytest.mark.slow
def test_a_run_that_was_killed_ends_as_one_that_was_not(tmp_path):
    result = subprocess.run([sys.executable, __file__, tmp_path], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0 and result.stderr == "", result.stderr
    told = json.loads(result.stdout)
    assert told["code"] == 0 and len({*told["moments"]} - {0}) >= 2, told
    killed, through = tmp_path / "killed", tmp_path / "through"
    assert names(killed) == names(through)
    for name in names(through):
        if name != "run.json":
            assert (killed / name).read_bytes() == (through / name).read_bytes(), name
    assert Run.open(killed).finished


def test_a_run_that_stopped_goes_on_from_its_checkpoint(begun, tmp_path):
    train(begun, 20)
    train(tmp_path / "through", 20)
    assert (begun / "log.jsonl").read_bytes().count(b"terms") == 20
    assert [r for r in Run.open(begun).records() if "terms" in r] == [
        r for r in Run.open(tmp_path / "through").records() if "terms" in r
    ]
    last = "checkpoints/000020.safetensors"
    assert (begun / last).read_bytes() == (tmp_path / "through" / last).read_bytes()


def test_a_half_written_line_is_dropped(begun):
    with (begun / "log.jsonl").open("ab") as file:
        file.write(b'{"step": 13, "mo')
    assert [r["step"] for r in Run.open(begun).records()] == [*range(1, 13)]
    with Run.open(begun) as run:
        run.log({"score": float("nan"), "note": "late"}, 12)
    assert [*Run.open(begun).records()][-1] == {"step": 12, "score": None, "note": "late"}


def test_a_run_killed_before_its_first_checkpoint_begins_anew(tmp_path):
    with Run.create(tmp_path / "run", RECIPE, "test", 3) as run:
        run.log({"score": 1.0}, 1)
    run = Run.open(tmp_path / "run")
    played = game()
    assert run.load(played) == 0 and played.step == 0
    run.log({"score": 2.0}, 1)
    assert [*run.records()] == [{"step": 1, "score": 2.0}]
    with pytest.raises(VeilError, match="has no best checkpoint yet; train it first"):
        run.load(played, "best")


@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_checkpoint_counts_only_when_it_is_whole(begun, after, monkeypatch):
    """Killed before the tensors, the values or the index of the next checkpoint take their names."""
    run, played = Run.open(begun), game()
    run.load(played)
    for step in range(11, 16):
        played.train_step(batch(step))
    publish, published = Draft.publish, []

    def killed(draft: Draft) -> None:
        if len(published) == after:
            draft.discard = lambda: None  # a killed process does not clean up
            raise KeyboardInterrupt
        published.append(draft)
        publish(draft)

    with monkeypatch.context() as patch:
        patch.setattr(Draft, "publish", killed)
        with pytest.raises(KeyboardInterrupt):
            run.save(played)
    run.close()
    again = Run.open(begun)
    assert again.load(game()) == 10
    again.save(played)
    kept = ["000005", "000010", "000015"]
    files = [f"{name}.{end}" for name in kept for end in ("json", "safetensors")]
    assert names(begun / "checkpoints") == [*files, "index.json"]
    assert again.load(game()) == 15


def test_the_last_two_and_the_best_are_kept(tmp_path):
    train(tmp_path / "run", 40)
    kept = {name[:6] for name in names(tmp_path / "run" / "checkpoints")} - {"index."}
    assert kept == {"000015", "000035", "000040"}
    run, played = Run.open(tmp_path / "run"), game()
    assert run.load(played, "best") == 15 == played.step
    run.log({"score": 1.0}, 40)
    assert len([*run.records()]) == 46, "looking at the best one dropped what came after it"
    assert run.load(played) == 40 and run.finished
    assert (run.kind, run.seed, run.recipe["steps"]) == ("test", 3, 60)


def test_the_weights_of_one_player(tmp_path):
    train(tmp_path / "run", 10)
    run, played = Run.open(tmp_path / "run"), game()
    run.load(played)
    hides = played._modules_by_name["hide.0"]
    for averaged, wanted in ((True, played.averaged(hides)), (False, hides.state_dict())):
        found = run.weights("hide.0", averaged=averaged)
        assert found.keys() == wanted.keys()
        assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    with pytest.raises(VeilError, match=r"000010\.safetensors has no player 'hide'; it has hide\.0, see\.0"):
        run.weights("hide")


def test_only_the_first_process_writes(tmp_path, monkeypatch):
    monkeypatch.setattr("veil.training.run.rank", lambda: 1)
    train(tmp_path / "run", 6)
    assert not (tmp_path / "run").exists()


# Bad folders


def test_a_folder_for_a_new_run_is_empty(tmp_path, begun):
    with pytest.raises(VeilError, match="run holds a run already; resume it, or choose another folder"):
        Run.create(begun, RECIPE, "test", 3)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("precious")
    with pytest.raises(VeilError, match="full is not empty; choose another folder"):
        Run.create(tmp_path / "full", RECIPE, "test", 3)
    with pytest.raises(VeilError, match=r"thesis.tex could not be written \("):
        Run.create(tmp_path / "full" / "thesis.tex", RECIPE, "test", 3)
    assert names(tmp_path / "full") == ["thesis.tex"]
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / ".veil-012345.json").write_text('{"kind"')
    with pytest.raises(VeilError, match=r"half holds no run: there is no run\.json"):
        Run.open(tmp_path / "half")
    Run.create(tmp_path / "half", RECIPE, "test", 3)
    assert names(tmp_path / "half") == ["run.json"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('{"kind": "te', r"run\.json is no JSON .* not written by Veil"),
        ('{"name": "mlflow", "kind": 3}', r"run\.json was not written by Veil; name another folder"),
        ("[]", r"run\.json is not what it should be"),
    ],
)
def test_folders_of_others(tmp_path, text, sentence):
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(VeilError, match=sentence):
        Run.open(tmp_path)


def test_another_recipe_kind_or_seed_is_refused(begun):
    Run.open(begun, recipe=RECIPE, kind="test", seed=3)
    with pytest.raises(VeilError, match="was begun with kind = test, not other; go on with what it was"):
        Run.open(begun, kind="other")
    with pytest.raises(VeilError, match="was begun with seed = 3, not 4"):
        Run.open(begun, seed=4)
    other = {**RECIPE, "optim": {"lr": 0.5, "betas": [0.9, 0.99]}}
    with pytest.raises(VeilError, match=r"was begun with recipe\.optim\.lr = 0\.01, not 0\.5"):
        Run.open(begun, recipe=other)


def test_another_game_is_refused(begun):
    with pytest.raises(
        VeilError, match=r"000010\.safetensors does not fit: this is the state of another game"
    ):
        Run.open(begun).load(game(width=9))
    with pytest.raises(VeilError, match="its 'accumulate' is 2, here it is 1"):
        Run.open(begun).load(game(Setup(seed=3, ema=0.9)))


def test_a_damaged_checkpoint_is_named_and_the_one_before_serves(begun):
    path = begun / "checkpoints" / "000010.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-7] + b"damaged")
    remedy = r"delete 000010\.\* there to go on from step 5"
    with pytest.raises(VeilError, match=rf"000010\.safetensors is damaged: .*; {remedy}"):
        Run.open(begun).load(game())
    path.unlink()
    with pytest.raises(VeilError, match=rf"000010\.safetensors cannot be read \(No such file.*; {remedy}"):
        Run.open(begun).load(game())
    path.write_bytes(whole)
    values = path.with_suffix(".json")
    text = values.read_text()
    values.write_text(text[:50])
    with pytest.raises(VeilError, match=rf"000010\.json is no JSON .*; {remedy}"):
        Run.open(begun).load(game())
    values.write_text(text.replace('"kind": "test"', '"kind": "other"'))
    with pytest.raises(VeilError, match=rf"000010\.safetensors is of another run.*; {remedy}"):
        Run.open(begun).load(game())
    values.unlink()
    path.unlink()
    run, played = Run.open(begun), game()
    assert run.load(played) == 5
    run.log(played.train_step(batch(6)))
    assert [r["step"] for r in run.records()] == [1, 2, 3, 4, 5, 6]
    assert json.loads((begun / "checkpoints" / "index.json").read_text()) == {"kept": [5], "best": 5}


def test_missing_checkpoints(begun):
    shutil.rmtree(begun / "checkpoints")
    assert Run.open(begun).load(game()) == 0
    (begun / "checkpoints").mkdir()
    index = begun / "checkpoints" / "index.json"
    index.write_text('{"kept": [5, 10], "best": 5}')
    for which in ("last", "best"):
        with pytest.raises(VeilError, match=r"0000(10|05)\.safetensors is missing; put it back, or begin"):
            Run.open(begun).load(game(), which)
    index.write_text('{"kept": 5}')
    with pytest.raises(VeilError, match=r"index\.json is no index of checkpoints"):
        Run.open(begun).load(game())


@pytest.mark.slow
def test_two_processes_cannot_write_one_run(begun):
    code = (
        "import sys, time; from veil.training.run import Run; run = Run.open(sys.argv[1]); run.log({}, 12); "
        "print(); time.sleep(60)"
    )
    other = subprocess.Popen([sys.executable, "-uc", code, begun], stdout=subprocess.PIPE)
    try:
        assert other.stdout is not None and other.stdout.readline()
        with pytest.raises(
            VeilError, match="run is being written by another process; wait for it, or end it"
        ):
            Run.open(begun).log({"score": 1}, 12)
        assert len([*Run.open(begun).records()]) == 13
    finally:
        other.kill()
        other.wait()
    Run.open(begun).log({"score": 1}, 12)


def test_what_is_not_finite_is_not_saved(begun):
    run, played = Run.open(begun), game()
    run.load(played)
    before = names(begun)
    with torch.no_grad():
        next(played._modules_by_name["see.0"].parameters()).fill_(float("nan"))
    with pytest.raises(VeilError, match="not finite after step 10"):
        run.save(played)
    assert names(begun) == before


# The log as a picture


def test_the_log_is_drawn(begun):
    place = Run.open(begun).plot()
    texts = [e.text for e in ElementTree.parse(place).iter() if e.tag.endswith("text")]
    assert place.name == "log.svg" and {"hide/keep", "hide/budget", "hide/lr", "see/task", "12"} <= {*texts}


def test_long_and_odd_logs_are_drawn(tmp_path):
    run = Run.create(tmp_path / "run", {}, "test")
    assert "nothing is logged yet" in run.plot().read_text()
    for step in range(1, 1001):
        run.log({"a<b": step % 7, "none": float("inf"), "yes": True}, step)
    run.log({"once": 3}, 1000)
    drawn = run.plot().read_text()
    points = [e.get("points", "") for e in ElementTree.fromstring(drawn).iter() if e.tag.endswith("polyline")]
    assert [len(p.split()) for p in points] == [200, 1] and "a&lt;b" in drawn
    with pytest.raises(ValueError, match="needs its step"):
        run.log({"score": 1})


def test_tensorboard_is_an_option(tmp_path, monkeypatch):
    pytest.importorskip("tensorboard")
    run = Run.create(tmp_path / "run", RECIPE, "test", tensorboard=True)
    run.log(game().train_step(batch(1)))
    run.finish()
    assert len([*(tmp_path / "run" / "tensorboard").iterdir()]) == 1
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(VeilError, match=r"pip install 'veil-video\[train\]'"):
        Run.create(tmp_path / "other", RECIPE, "test", tensorboard=True)
    assert not (tmp_path / "other").exists()


if __name__ == "__main__":
    drive(Path(sys.argv[1]))
