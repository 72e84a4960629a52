"""Gait retrieval: probes are matched with a gallery by the recognizer's features, with and without the identical view."""

from collections.abc import Iterator

import numpy as np

from veil.audit.answers import Answers
from veil.audit.result import Row
from veil.metrics import rank1


def measure(answers: Answers) -> Iterator[Row]:
    """Two rows, where the test videos are labelled as gallery and probe; the training videos can be the gallery."""
    test = answers.test
    if answers.target != "identity" or not any(s.groups.get("role") == "probe" for s in test.samples):
        return
    probes = test.of(lambda sample: sample.groups.get("role") == "probe")
    gallery = test.of(lambda sample: sample.groups.get("role") == "gallery")
    pair = probes, gallery if len(gallery) else answers.train
    probe, known = (answers.trained.features(part.frames) for part in pair)
    identities = [part.truth("identity").numpy() for part in pair]
    views = [np.array([s.groups.get("view", "") for s in part.samples]) for part in pair]
    for sides in (None, (views[0], views[1])):
        score = rank1(probe, identities[0], known, identities[1], views=sides, bootstrap=answers.bootstrap)
        yield answers.row(score, protocol=f"gait retrieval: {test.dataset}")
