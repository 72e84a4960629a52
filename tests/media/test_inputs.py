"""The rules of the one discovery of inputs, and where outputs go."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from errors import refuses
from veil.media.inputs import find_files, find_inputs, is_image, is_video, walk
from veil.media.outputs import plan_outputs

FILES = (
    *("b.mp4", "A.MOV", "c.png", "notes.txt", ".hidden.mp4", ".veil-0123456789ab.mp4", "out/old.mp4"),
    *("sub/a.mkv", "sub/.cache/x.mp4", "sub/deep/z.webm", "folder.mp4/inside.avi"),
)


@pytest.fixture
def tree(tmp_path: Path, monkeypatch) -> Path:
    """Files of all kinds, a pipe, links to a folder, to itself and to nothing."""
    for name in FILES:
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "linked.mp4").touch()
    os.mkfifo(tmp_path / "in" / "pipe.mp4")
    (tmp_path / "in" / "broken.mp4").symlink_to("nothing.mp4")
    (tmp_path / "in" / "itself.mp4").symlink_to("itself.mp4")
    (tmp_path / "in" / "file-link.mp4").symlink_to("b.mp4")
    (tmp_path / "in" / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "in" / "sub" / "circle").symlink_to(tmp_path / "in")
    monkeypatch.chdir(tmp_path)
    return tmp_path


EVERYTHING = (
    *("A.MOV", "b.mp4", "c.png", "file-link.mp4", "folder.mp4/inside.avi"),
    *("link/linked.mp4", "sub/a.mkv", "sub/deep/z.webm"),
)

# What is given, its options, and the places of what is found, in order.
RULES: dict[str, tuple[list[str], dict, list[str]]] = {
    "a folder, with all below it": (["in"], {"exclude": Path("in/out")}, [*EVERYTHING]),
    "only videos": (
        ["in"],
        {"exclude": Path("in/out"), "kinds": ("video",)},
        [place for place in EVERYTHING if not place.endswith(".png")],
    ),
    "only pictures": (["in"], {"kinds": ("image",)}, ["c.png"]),
    "a pattern finds files and no folders": (["in/*.mp4"], {}, ["b.mp4", "file-link.mp4"]),
    "a pattern through folders": (["in/sub/**/*.*"], {"kinds": ("video",)}, ["a.mkv", "deep/z.webm"]),
    "a pattern of hidden files": (["in/.*.mp4", "in/b.mp4"], {}, []),
    "a pattern leaves the output out": (["in/out/*.mp4", "in/b.mp4"], {"exclude": Path("in/out")}, []),
    "a name stands for itself": (["in/notes.txt", "missing.mp4"], {}, ["notes.txt", "missing.mp4"]),
    "a hidden file that is named": (["in/.hidden.mp4"], {}, [".hidden.mp4"]),
    "a camera and a stream": (["0", "rtsp://u:p@host/live?x=1"], {}, ["camera0.mp4", "live"]),
    "the order of what is given": (
        ["in/sub", "in/b.mp4", "in/A.MOV"],
        {},
        ["a.mkv", "deep/z.webm", "b.mp4", "A.MOV"],
    ),
}


@pytest.mark.parametrize("rule", RULES)
def test_rules(rule: str, tree: Path) -> None:
    names, options, places = RULES[rule]
    if "circle" not in str(names) and names[0].startswith("in/sub"):
        (tree / "in" / "sub" / "circle").unlink()
    if not places:
        with refuses("no-inputs"):
            find_inputs(names, **options)
        return
    found = find_inputs(names, **options)
    assert [str(one.place) for one in found] == places
    assert all(
        Path(one.name).name == one.place.name for one in found if "://" not in one.name and one.name != "0"
    )


def test_a_circle_of_links_ends(tree: Path) -> None:
    folders = [str(here.relative_to(tree / "in" / "sub")) for here, _ in walk(tree / "in" / "sub")]
    assert folders[:2] == [".", "circle"] and len(folders) == len(set(folders)) < 10


def test_the_same_rules_at_a_storage(tree: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    system = fsspec.filesystem("memory")
    for name in FILES:
        system.pipe_file(f"/bucket/in/{name}", b"-")
    try:
        everything = [str(one.place) for one in find_inputs(["memory://bucket/in"], stored=True)]
        assert everything == [
            *(
                "A.MOV",
                "b.mp4",
                "c.png",
                "folder.mp4/inside.avi",
                "out/old.mp4",
                "sub/a.mkv",
                "sub/deep/z.webm",
            ),
        ]
        pattern = find_inputs(["memory://bucket/in/*.mp4"], stored=True)
        assert [one.name for one in pattern] == ["memory:///bucket/in/b.mp4"]
        with refuses("no-inputs"):
            find_inputs(["memory://bucket/in/*.wmv"], stored=True)
    finally:
        system.rm("/bucket", recursive=True)


def test_nothing_found_is_an_error(tmp_path: Path) -> None:
    with refuses("no-inputs"):
        find_files(tmp_path)
    with refuses("not-a-folder"):
        find_files(tmp_path / "missing")


def test_a_folder_that_cannot_be_read_is_an_error(tmp_path: Path, monkeypatch) -> None:
    def forbid(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", forbid)
    with refuses("unreadable"):
        plan_outputs([str(tmp_path)], str(tmp_path / "out"))


def test_suffixes() -> None:
    assert is_video("a/B.MP4") and not is_image("a.mp4")
    assert is_image(Path("b.JPG")) and not is_video("b.jpg")
    assert not is_video("mp4") and not is_image("b.txt")


def test_outputs_mirror_inputs(tree: Path) -> None:
    (tree / "in" / "b.avi").touch()
    planned = plan_outputs(["in"], "in/out")
    targets = {one.source: str(one.target) for one in planned}
    assert targets["in/b.mp4"] == "in/out/b.mp4.mp4" and targets["in/b.avi"] == "in/out/b.avi.mp4"
    assert targets["in/sub/deep/z.webm"] == "in/out/sub/deep/z.mp4" and targets["in/c.png"] == "in/out/c.png"
    assert planned[0].beside("reports", ".json") == Path("reports/A.MOV.json")
    single = plan_outputs(["in/b.mp4"], "x.mp4")[0]
    assert single.root is None and single.beside("r.json", ".json") == Path("r.json")
    with refuses("output-twice"):
        plan_outputs(["in/b.mp4", "in/b.mp4"], "new")
    with refuses("output-is-file"):
        plan_outputs(["in"], "in/notes.txt")
    with refuses("output-is-file"):
        plan_outputs(["in"], "new.mp4")
    assert plan_outputs(["in"], "new.mp4/")[0].root == Path("new.mp4")
