"""The base installation, without any extra: what hides people runs, and what needs an extra gives one sentence."""

import json
import os
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import clips
from veil.core import EXTRAS

ROOT = Path(__file__).parents[1]
SAME = {"opencv-python-headless": "opencv-python"}  # both hold cv2; either may be installed where tests run
BLOCK = """
import json, sys
from pathlib import Path

BLOCKED = set(json.loads(Path(__file__).with_name("blocked.json").read_text()))

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
"""


def base_distributions() -> set[str]:
    """The distributions that `pip install .` brings: the dependencies of the base, and theirs."""
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    found: set[str] = set()
    while wanted:
        requirement = Requirement(wanted.pop())
        name = canonicalize_name(requirement.name)
        if name in found or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        found.add(name)
        for installed in {name, SAME.get(name, name)}:
            try:
                wanted += metadata.requires(installed) or []
            except metadata.PackageNotFoundError:
                continue
            found.add(installed)
    return found


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """An environment in which no module outside the base can be imported, in any process."""
    folder = tmp_path_factory.mktemp("base")
    there = base_distributions()
    blocked = [
        module
        for module, owners in metadata.packages_distributions().items()
        if module != "veil" and not there & {canonicalize_name(owner) for owner in owners}
    ]
    assert {"torch", "torchvision", "onnx", "scipy"} <= {*blocked} and not {"cv2", "numpy", "av"} & {*blocked}
    (folder / "blocked.json").write_text(json.dumps(blocked))
    (folder / "sitecustomize.py").write_text(BLOCK)
    paths = [str(folder), str(ROOT / "src")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "XDG_CACHE_HOME": str(folder / "cache")}


def veil(environment, *arguments):
    words = [sys.executable, "-m", "veil", *map(str, arguments)]
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120)


def test_help_list_and_doctor(base):
    for verb in ("--help", "list", "doctor"):
        result = veil(base, verb)
        assert result.returncode == 0 and result.stderr == "", result.stdout + result.stderr


@pytest.mark.slow
def test_demo(base, tmp_path):
    result = veil(base, "demo", "-o", tmp_path)
    assert result.returncode == 0 and (tmp_path / "anonymized.mp4").stat().st_size, result.stderr


@pytest.mark.parametrize("method", ["selective", "blacken", "prototypes"])
def test_anonymize(base, tmp_path, method):
    video = clips.video(tmp_path / "in.mp4", [np.full((48, 64, 3), level, np.uint8) for level in range(4)])
    result = veil(base, "anonymize", video, "-o", tmp_path / "out.mp4", "--method", method)
    assert result.returncode == 0 and (tmp_path / "out.mp4").stat().st_size, result.stderr


def test_urls_of_storages_are_read(base, tmp_path):
    (tmp_path / "in").mkdir()
    clips.video(tmp_path / "in" / "a.mp4", [np.zeros((48, 64, 3), np.uint8)] * 4)
    result = veil(
        base, "batch", f"local://{tmp_path}/in/*.mp4", "-o", tmp_path / "out", "--method", "blacken"
    )
    assert result.returncode == 0 and (tmp_path / "out" / "a.mp4").stat().st_size, result.stderr


def test_every_package_of_the_extra_learn_has_its_sentence():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    modules = {"scikit-learn": "sklearn"}
    names = [canonicalize_name(Requirement(text).name) for text in extras["learn"]]
    assert {modules.get(name, name) for name in names} == {*EXTRAS["learn"]}


@pytest.mark.parametrize(
    "arguments",
    [("audit", "blur", "-o", "{}/report"), ("train", ROOT / "recipes" / "spact.toml", "-o", "{}/run")],
    ids=["audit", "train"],
)
def test_what_needs_an_extra_names_it_in_one_sentence(base, tmp_path, arguments):
    result = veil(base, *(str(word).format(tmp_path) for word in arguments))
    (line,) = result.stderr.strip().splitlines()
    assert result.returncode == 2 and ".[learn]" in line, result.stderr
    assert not [*tmp_path.iterdir()]
