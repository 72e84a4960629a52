"""Small recipes of one method of each kind, and a video through an anonymizer in windows."""

import numpy as np

from veil.core import Anonymizer

DATA = (
    "[data]\nsize = 32\nlength = {length}\nskip = 2\nbatch = 2\nimage_pairs = 2\noptions = {{ count = 60 }}\n"
)
UTILITY = '[utility]\nnetwork = "small3d"\n'
STEPS = "[schedule]\nreconstruction_steps = 1\nwarmup_steps = 1\nadversarial_steps = 2\n"
ADVERSARIAL = UTILITY + '[budget]\nnetworks = ["small2d"]\n' + STEPS
RECIPES = {
    "frames": 'method = "spact"\n[anonymizer]\nwidth = 4\n' + ADVERSARIAL + DATA.format(length=4),
    "difference": 'method = "bdq"\n' + ADVERSARIAL + DATA.format(length=4),
    "blocks": 'method = "stprivacy"\n[anonymizer]\ndim = 12\ndepth = 2\nstages = [1]\nratios = [0.5]\n'
    + ADVERSARIAL
    + DATA.format(length=16),
    "ahead": 'method = "prototypes"\n[anonymizer]\nwidth = 8\n[schedule]\nsteps = 4\n'
    + DATA.format(length=16),
    "coarse": 'method = "elr"\n[anonymizer]\npool = 3\ncount = 2\nfactor = 4\n[schedule]\nsteps = 2\n'
    + UTILITY
    + DATA.format(length=4),
}


def whole(anonymizer: Anonymizer, frames: np.ndarray, *lengths: int) -> np.ndarray:
    ends = np.cumsum(lengths or [len(frames)])
    assert ends[-1] == len(frames)
    windows = [frames[end - length : end] for end, length in zip(ends, lengths or [len(frames)], strict=True)]
    return np.concatenate([veiled.frames for veiled in anonymizer.stream(windows)])
