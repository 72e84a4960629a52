"""Files of a dataset by their names; none of them is opened."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from veil.core import VeilError
from veil.media.inputs import is_image, is_video, walk


class FolderNotGiven(VeilError):
    """A dataset is to be read from disk, but its folder is not given."""

    def __init__(self, dataset: str) -> None:
        super().__init__(
            f"{dataset} is read from disk: give the folder that holds it.", code="dataset-folder-not-given"
        )
        self.dataset = dataset


def dataset_folder(root: Path | str | None, dataset: str) -> Path:
    """The folder of a dataset, which must exist."""
    if root is None:
        raise FolderNotGiven(dataset)
    if not Path(root).is_dir():
        raise VeilError(
            f"{root} is not a folder: give the one that holds {dataset}.", code="dataset-folder-missing"
        )
    return Path(root)


def find(base: Path, *patterns: str) -> list[Path]:
    """The matches of the first pattern that has any, in the folder or up to two levels below it, sorted."""
    for pattern in patterns:
        for depth in ("", "*/", "*/*/"):
            if found := sorted(base.glob(depth + pattern)):
                return found
    return []


def locate(base: Path, *patterns: str, hint: str) -> Path:
    """The first match of `find`; an error with the hint where there is none."""
    if base.is_file() and any(base.match(pattern) for pattern in patterns):
        return base
    found = find(base, *patterns)
    if not found:
        raise VeilError(f"{base} has no {' or '.join(patterns)}: {hint}.", code="label-file-missing")
    return found[0]


def media_files(root: Path) -> dict[str, Path]:
    """Every video and every folder of frames below the root, by its name without suffix."""
    found: dict[str, Path] = {}
    for here, names in walk(root):
        videos = [name for name in names if is_video(name)]
        for name in videos:
            found.setdefault(Path(name).stem, here / name)
        if not videos and here != root and any(is_image(name) for name in names):
            found.setdefault(here.name, here)
    return found


def video_id(name: str) -> str:
    """The name of a video as an id, in which ``#`` would begin the name of a clip."""
    return name.replace("#", "~")


def select_present(
    listed: Iterable[str], found: Mapping[str, Path], root: Path, what: str
) -> tuple[dict[str, Path], list[str]]:
    """The listed names that were found, and a note about the others; an error where none was found."""
    names = list(listed)
    present = {name: found[name] for name in names if name in found}
    if not present:
        example = f", such as {names[0]}" if names else ""
        raise VeilError(
            f"{root} has none of the {len(names):,} {what}{example}: unpack them there.", code="no-samples"
        )
    missing = [name for name in names if name not in found]
    notes = (
        [f"{len(missing):,} of {len(names):,} {what} are missing, such as {missing[0]}"] if missing else []
    )
    return present, notes
