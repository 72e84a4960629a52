"""Run folders: a run goes on exactly where it was killed, and a bad folder is one sentence."""

import json
import multiprocessing
import os
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

from errors import refuses
from veil.media.draft import Draft
from veil.training.fit import fit
from veil.training.phase import Phase
from veil.training.run import Run
from veil.training.schedule import LRSchedule
from veil.training.steps import Setup, Step, Terms

RECIPE = {"optim": {"lr": 0.01, "betas": (0.9, 0.99)}, "steps": 60}
SETUP = Setup(seed=3, accumulate=2, clip=1.0, ema=0.9)


def batch(step: int) -> Tensor:
    return torch.randn(8, 6, generator=torch.Generator().manual_seed(step))


def adversarial_phase(setup: Setup = SETUP, width: int = 8) -> Phase[Tensor]:
    """A phase with all that must be restored: dropout, batch statistics, momenta, schedules, averages."""
    torch.manual_seed(0)
    hides = nn.Sequential(nn.Linear(6, width), nn.BatchNorm1d(width), nn.Dropout(0.4), nn.Linear(width, 6))
    sees = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.2), nn.Linear(8, 1))

    def hide(x: Tensor) -> Terms:
        hidden = hides(x)
        return {"keep": +F.mse_loss(hidden, x), "budget": -0.1 * sees(hidden).square().mean()}

    def see(x: Tensor) -> Terms:
        return {"task": F.mse_loss(sees(hides(x)), x[:, :1])}

    cosine = LRSchedule(warmup=3, shape="cosine", updates=20)
    steps = [
        Step("hide", (hides,), hide, lr=0.01, weight_decay=0.1, schedule=cosine),
        Step("see", (sees,), see, lr=0.05, batch_stats=(hides,)),
    ]
    return Phase(steps, setup)


def train(folder: Path, steps: int, every: int = 5) -> None:
    """Start a run, or resume it."""
    begun = (folder / "run.json").exists()
    run = Run.open(folder, recipe=RECIPE, kind="test") if begun else Run.create(folder, RECIPE, "test", 3)
    phase = adversarial_phase()
    start = run.load(phase)
    for measured in fit(phase, map(batch, range(start + 1, steps + 1))):
        run.log(measured)
        if measured.step % 7 == 0:
            run.log({"score": float(measured.step)}, measured.step)
        if measured.step % every == 0:
            run.save(phase, best=measured.step == 15)
    run.finish()


@pytest.fixture
def begun(tmp_path) -> Path:
    """A run that was stopped after 12 steps, with checkpoints of 5 and 10."""
    with Run.create(tmp_path / "run", RECIPE, "test", 3) as run:
        phase = adversarial_phase()
        for measured in fit(phase, map(batch, range(1, 13))):
            run.log(measured)
            if measured.step in (5, 10):
                run.save(phase, best=measured.step == 5)
    return tmp_path / "run"


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


# Resuming


def drive(folder: Path) -> None:
    """Kill a run at random moments until it is finished; all its processes share one import of torch."""
    torch.set_num_threads(1)
    adversarial_phase().train_step(batch(1))  # loads what torch loads late
    processes = multiprocessing.get_context("fork")
    rng, moments, log = random.Random(), [], folder / "killed" / "log.jsonl"

    def length() -> int:
        return log.read_bytes().count(b"\n") if log.exists() else 0

    while True:
        process = processes.Process(target=train, args=(folder / "killed", 60, 4))
        process.start()
        enough = length() + rng.randint(0, 12)
        while process.is_alive() and (length() < enough or len(moments) >= 12):
            time.sleep(0.001)
        time.sleep(rng.uniform(0, 0.01))
        process.kill()
        process.join()
        if process.exitcode == 0:
            break
        moments.append(length())
    process = processes.Process(target=train, args=(folder / "uninterrupted", 60, 4))
    process.start()
    process.join()
    print(json.dumps({"moments": moments, "code": process.exitcode}))


def test_drafts_of_a_killed_process_are_removed_at_the_end(begun):
    (begun / ".veil-000000000000.json").touch()
    with Run.open(begun) as run:
        run.finish()
    assert not [name for name in names(begun) if ".veil-" in name]


@pytest.mark.slow
def test_a_run_that_was_killed_ends_as_one_that_was_not(tmp_path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, __file__, tmp_path]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0 and result.stderr == "", result.stderr
    report = json.loads(result.stdout)
    assert report["code"] == 0 and len({*report["moments"]} - {0}) >= 2, report
    killed, uninterrupted = tmp_path / "killed", tmp_path / "uninterrupted"
    assert names(killed) == names(uninterrupted)
    for name in names(uninterrupted):
        if name != "run.json":
            assert (killed / name).read_bytes() == (uninterrupted / name).read_bytes(), name
    assert Run.open(killed).finished


def test_a_stopped_run_continues_from_its_checkpoint(begun, tmp_path):
    train(begun, 20)
    train(tmp_path / "uninterrupted", 20)
    assert (begun / "log.jsonl").read_bytes().count(b"terms") == 20
    assert [r for r in Run.open(begun).records() if "terms" in r] == [
        r for r in Run.open(tmp_path / "uninterrupted").records() if "terms" in r
    ]
    last = "checkpoints/000020.safetensors"
    assert (begun / last).read_bytes() == (tmp_path / "uninterrupted" / last).read_bytes()


def test_a_half_written_line_is_dropped(begun):
    with (begun / "log.jsonl").open("ab") as file:
        file.write(b'{"step": 13, "step_na')
    assert [r["step"] for r in Run.open(begun).records()] == [*range(1, 13)]
    with Run.open(begun) as run:
        run.log({"score": float("nan"), "note": "late"}, 12)
    assert [*Run.open(begun).records()][-1] == {"step": 12, "score": None, "note": "late"}


def test_a_run_killed_before_its_first_checkpoint_starts_anew(tmp_path):
    with Run.create(tmp_path / "run", RECIPE, "test", 3) as run:
        run.log({"score": 1.0}, 1)
    run = Run.open(tmp_path / "run")
    phase = adversarial_phase()
    assert run.load(phase) == 0 and phase.step == 0
    run.log({"score": 2.0}, 1)
    assert [*run.records()] == [{"step": 1, "score": 2.0}]
    with refuses("no-checkpoint"):
        run.load(phase, "best")


@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_checkpoint_counts_only_when_it_is_whole(begun, after, monkeypatch):
    """Killed before the tensors, the values or the index of the next checkpoint take their names."""
    run, phase = Run.open(begun), adversarial_phase()
    run.load(phase)
    for step in range(11, 16):
        phase.train_step(batch(step))
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
            run.save(phase)
    run.close()
    again = Run.open(begun)
    assert again.load(adversarial_phase()) == 10
    again.save(phase)
    kept = ["000005", "000010", "000015"]
    files = [f"{name}.{end}" for name in kept for end in ("json", "safetensors")]
    assert names(begun / "checkpoints") == [*files, "index.json"]
    assert again.load(adversarial_phase()) == 15


def test_the_last_two_and_the_best_are_kept(tmp_path):
    train(tmp_path / "run", 40)
    kept = {name[:6] for name in names(tmp_path / "run" / "checkpoints")} - {"index."}
    assert kept == {"000015", "000035", "000040"}
    run, phase = Run.open(tmp_path / "run"), adversarial_phase()
    assert run.load(phase, "best") == 15 == phase.step
    run.log({"score": 1.0}, 40)
    assert len([*run.records()]) == 46, "looking at the best one dropped what came after it"
    assert run.load(phase) == 40 and run.finished
    assert (run.kind, run.seed, run.recipe["steps"]) == ("test", 3, 60)


def test_the_weights_of_one_module(tmp_path):
    train(tmp_path / "run", 10)
    run, phase = Run.open(tmp_path / "run"), adversarial_phase()
    run.load(phase)
    hides = phase._modules_by_name["hide.0"]
    for averaged, wanted in ((True, phase.averaged(hides)), (False, hides.state_dict())):
        found = run.weights("hide.0", averaged=averaged)
        assert found.keys() == wanted.keys()
        assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    with refuses("no-such-module") as raised:
        run.weights("hide")
    assert "hide.0, see.0" in str(raised.value)


def test_only_the_first_process_writes(tmp_path, monkeypatch):
    monkeypatch.setattr("veil.training.run.rank", lambda: 1)
    train(tmp_path / "run", 6)
    assert not (tmp_path / "run").exists()


# Bad folders


def test_a_folder_for_a_new_run_is_empty(tmp_path, begun):
    with refuses("run-exists"):
        Run.create(begun, RECIPE, "test", 3)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("precious")
    with refuses("folder-not-empty"):
        Run.create(tmp_path / "full", RECIPE, "test", 3)
    with refuses("unwritable"):
        Run.create(tmp_path / "full" / "thesis.tex", RECIPE, "test", 3)
    assert names(tmp_path / "full") == ["thesis.tex"]
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / ".veil-012345.json").write_text('{"kind"')
    with refuses("no-run"):
        Run.open(tmp_path / "half")
    Run.create(tmp_path / "half", RECIPE, "test", 3)
    assert names(tmp_path / "half") == ["run.json"]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ('{"kind": "te', "json-invalid"),
        ('{"name": "mlflow", "kind": 3}', "run-foreign"),
        ("[]", "json-invalid"),
    ],
)
def test_folders_of_other_programs(tmp_path, text, code):
    (tmp_path / "run.json").write_text(text)
    with refuses(code):
        Run.open(tmp_path)


def test_another_recipe_kind_or_seed_is_refused(begun):
    Run.open(begun, recipe=RECIPE, kind="test", seed=3)
    with refuses("run-differs"):
        Run.open(begun, kind="other")
    with refuses("run-differs"):
        Run.open(begun, seed=4)
    other = {**RECIPE, "optim": {"lr": 0.5, "betas": [0.9, 0.99]}}
    with refuses("run-differs") as raised:
        Run.open(begun, recipe=other)
    assert "recipe.optim.lr = 0.01" in str(raised.value) and "0.5" in str(raised.value)


def test_another_phase_is_refused(begun):
    with refuses("state-mismatch") as raised:
        Run.open(begun).load(adversarial_phase(width=9))
    assert "000010.safetensors" in str(raised.value)
    with refuses("state-mismatch") as raised:
        Run.open(begun).load(adversarial_phase(Setup(seed=3, ema=0.9)))
    assert "'accumulate'" in str(raised.value)


def test_a_damaged_checkpoint_is_named_and_the_one_before_serves(begun):
    path = begun / "checkpoints" / "000010.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-7] + b"damaged")
    with refuses("checkpoint-damaged") as raised:
        Run.open(begun).load(adversarial_phase())
    assert "000010.*" in str(raised.value) and "step 5" in str(raised.value)
    path.unlink()
    with refuses("unreadable") as raised:
        Run.open(begun).load(adversarial_phase())
    assert "000010.*" in str(raised.value) and "step 5" in str(raised.value)
    path.write_bytes(whole)
    values = path.with_suffix(".json")
    text = values.read_text()
    values.write_text(text[:50])
    with refuses("json-invalid") as raised:
        Run.open(begun).load(adversarial_phase())
    assert "000010.*" in str(raised.value) and "step 5" in str(raised.value)
    values.write_text(text.replace('"kind": "test"', '"kind": "other"'))
    with refuses("checkpoint-foreign") as raised:
        Run.open(begun).load(adversarial_phase())
    assert "000010.*" in str(raised.value) and "step 5" in str(raised.value)
    values.unlink()
    path.unlink()
    run, phase = Run.open(begun), adversarial_phase()
    assert run.load(phase) == 5
    run.log(phase.train_step(batch(6)))
    assert [r["step"] for r in run.records()] == [1, 2, 3, 4, 5, 6]
    assert json.loads((begun / "checkpoints" / "index.json").read_text()) == {"kept": [5], "best": 5}


def test_missing_checkpoints(begun):
    shutil.rmtree(begun / "checkpoints")
    assert Run.open(begun).load(adversarial_phase()) == 0
    (begun / "checkpoints").mkdir()
    index = begun / "checkpoints" / "index.json"
    index.write_text('{"kept": [5, 10], "best": 5}')
    for which in ("last", "best"):
        with refuses("checkpoint-missing"):
            Run.open(begun).load(adversarial_phase(), which)
    index.write_text('{"kept": 5}')
    with refuses("index-invalid"):
        Run.open(begun).load(adversarial_phase())


@pytest.mark.slow
def test_two_processes_cannot_write_one_run(begun):
    code = (
        "import sys, time; from veil.training.run import Run; run = Run.open(sys.argv[1]); run.log({}, 12); "
        "print(); time.sleep(60)"
    )
    other = subprocess.Popen([sys.executable, "-uc", code, begun], stdout=subprocess.PIPE)
    try:
        assert other.stdout is not None and other.stdout.readline()
        with refuses("run-locked"):
            Run.open(begun).log({"score": 1}, 12)
        assert len([*Run.open(begun).records()]) == 13
    finally:
        other.kill()
        other.wait()
    Run.open(begun).log({"score": 1}, 12)


def test_what_is_not_finite_is_not_saved(begun):
    run, phase = Run.open(begun), adversarial_phase()
    run.load(phase)
    before = names(begun)
    with torch.no_grad():
        next(phase._modules_by_name["see.0"].parameters()).fill_(float("nan"))
    with refuses("weights-not-finite"):
        run.save(phase)
    assert names(begun) == before


# The log


def test_an_empty_run_is_removed_and_one_with_a_log_is_kept(tmp_path):
    with Run.create(tmp_path / "empty", RECIPE, "test", 3) as run:
        run.remove_if_empty()
    with Run.create(tmp_path / "logged", RECIPE, "test", 3) as run:
        run.log({"score": 1.0}, 1)
        run.remove_if_empty()
    assert [path.name for path in tmp_path.iterdir()] == ["logged"]
    assert [*Run.open(tmp_path / "logged").records()] == [{"step": 1, "score": 1.0}]


def test_the_log_is_plotted(begun):
    path = Run.open(begun).plot()
    texts = {"".join(e.itertext()).strip() for e in ElementTree.parse(path).iter() if e.tag.endswith("text")}
    assert path.name == "log.svg" and {"hide/keep", "hide/budget", "hide/lr", "see/task"} <= texts
    first = path.read_bytes()
    assert Run.open(begun).plot().read_bytes() == first


def test_long_and_odd_logs_are_plotted(tmp_path):
    run = Run.create(tmp_path / "run", {}, "test")
    assert run.plot().is_file(), "an empty log"
    for step in range(1, 1001):
        run.log({"a<b": step % 7, "$none": float("inf"), "yes": True}, step)
    run.log({"once $": 3}, 1000)
    text = run.plot().read_text()
    assert "a&lt;b" in text and "once $" in text and "$none" not in text
    with pytest.raises(ValueError, match="step"):
        run.log({"score": 1})


def test_tensorboard_is_an_option(tmp_path, monkeypatch):
    pytest.importorskip("tensorboard")
    run = Run.create(tmp_path / "run", RECIPE, "test", tensorboard=True)
    run.log(adversarial_phase().train_step(batch(1)))
    run.finish()
    assert len([*(tmp_path / "run" / "tensorboard").iterdir()]) == 1
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with refuses("extra-missing"):
        Run.create(tmp_path / "other", RECIPE, "test", tensorboard=True)
    assert not (tmp_path / "other").exists()


if __name__ == "__main__":
    drive(Path(sys.argv[1]))
