"""No flash: a thing that is found in some frames is covered in all of them; and detection keeps to the budget."""

import numpy as np
import pytest

from veil.people.boxes import closeness, union
from veil.people.detectors import Detection
from veil.people.tracks import TrackingOptions, is_cut, track

RANDOM = np.random.default_rng(5)
SCENE = RANDOM.integers(60, 120, (12, 16, 3)).repeat(20, 0).repeat(20, 1).astype(np.uint8)  # 240 x 320
FACE = RANDOM.integers(0, 256, (8, 8, 3)).repeat(5, 0).repeat(5, 1).astype(np.uint8)  # 40 x 40


class Fake:
    """Finds the square where it is, except in the frames in which it is made to miss it."""

    def __init__(self, misses=(), local=False, score=0.9):
        self.misses, self.local, self.score, self.looks = set(misses), local, score, []

    def __call__(self, image):
        self.looks.append(image.shape[0] * image.shape[1] / (240 * 320))
        number = int(image[0, 0, 0]) + 256 * int(image[0, 0, 1]) if image.shape[:2] == (240, 320) else None
        found = np.argwhere((image[..., 2] == 255) & (image[..., 0] == 1))
        if not len(found) or number in self.misses:
            return []
        (y0, x0), (y1, x1) = found.min(0), found.max(0) + 1
        return [Detection((float(x0), float(y0), float(x1), float(y1)), self.score)]


def place(t):
    return 20 + 4 * t, 60 + round(30 * np.sin(t / 8))


def video(length, present=lambda t: True, marked=True):
    for t in range(length):
        image = SCENE.copy()
        if present(t):
            x, y = place(t)
            image[y : y + 40, x : x + 40] = FACE
            if marked:
                image[y, x : x + 40] = image[y + 39, x : x + 40] = (1, 0, 255)
                image[y : y + 40, x] = image[y : y + 40, x + 39] = (1, 0, 255)
        image[0, 0] = (t % 256, t // 256, 0)
        yield image


def cover(regions, t):
    """The share of the true square that the regions hide."""
    x, y = place(t)
    truth = np.zeros((240, 320), bool)
    truth[y : y + 40, x : x + 40] = True
    hidden = np.zeros_like(truth)
    for region in regions:
        x0, y0, x1, y1 = (round(v) for v in region.box)
        hidden[max(0, y0) : y1, max(0, x0) : x1] = True
    return (truth & hidden).sum() / truth.sum()


@pytest.mark.parametrize("gap", [range(20, 21), range(15, 25), range(18, 31)])
def test_a_gap_is_interpolated(gap):
    result = list(track(video(50), Fake(misses=gap), "face", TrackingOptions(every=1)))
    assert len(result) == 50
    assert all(cover(regions, t) > 0.8 for t, (_, regions) in enumerate(result))
    assert {r.how for t in gap for r in result[t][1]} == {"interpolated"}
    assert len({r.track for _, regions in result for r in regions}) == 1


def test_a_longer_gap_than_the_look_ahead_is_not_guessed():
    result = list(
        track(
            video(60), Fake(misses=range(15, 45)), "face", TrackingOptions(every=1, max_gap=10, extrapolate=3)
        )
    )
    assert all(cover(result[t][1], t) > 0.8 for t in (14, 15, 16, 17, 42, 43, 44, 45))
    assert not any(result[t][1] for t in range(20, 40))


def test_a_track_lost_in_the_middle_of_the_picture_is_held():
    """In a box that grows; where the picture ends, one may have left it."""
    options = TrackingOptions(every=1, max_gap=10, extrapolate=3, hold=40)
    result = list(track(video(60), Fake(misses=range(15, 45)), "person", options))
    assert all(cover(regions, t) > 0.8 for t, (_, regions) in enumerate(result))
    assert len({r.track for _, regions in result for r in regions}) == 1
    widths = [result[t][1][0].box[2] - result[t][1][0].box[0] for t in (14, 25, 32)]
    assert widths[0] < widths[1] < widths[2] < 2 * widths[0]
    result = list(track(video(60, lambda t: t < 5), Fake(), "person", options))
    assert [result[t][1][0].how for t in (4, 7, 8, 44)] == ["detected", "extrapolated", "held", "held"]
    assert [t for t, (_, regions) in enumerate(result) if regions] == list(range(45))
    result = list(
        track(video(80, lambda t: t < 65), Fake(), "person", options)
    )  # to the last 4 of 320 pixels
    assert [t for t, (_, regions) in enumerate(result) if regions] == list(range(68))


def test_before_the_first_and_after_the_last_detection():
    result = list(
        track(
            video(40),
            Fake(misses=[*range(12), *range(25, 40)]),
            "face",
            TrackingOptions(every=1, extrapolate=4),
        )
    )
    hidden = [t for t, (_, regions) in enumerate(result) if regions]
    assert hidden == list(range(8, 29))
    assert all(cover(result[t][1], t) > 0.75 for t in hidden)
    assert {r.how for t in (8, 11, 25, 28) for r in result[t][1]} == {"extrapolated"}


def test_frames_between_two_looks_are_covered():
    result = list(track(video(50), Fake(), "face", TrackingOptions(every=6)))
    assert all(cover(regions, t) > 0.8 for t, (_, regions) in enumerate(result))


def test_whoever_enters_between_two_looks_is_covered_from_the_first_frame():
    for first in range(8, 16):
        result = list(
            track(video(40, lambda t, first=first: t >= first), Fake(), "face", TrackingOptions(every=6))
        )
        assert all(cover(regions, t) > 0.7 for t, (_, regions) in enumerate(result) if t >= first), first


def test_weak_detections_count_only_beside_a_sure_one():
    options = TrackingOptions(every=1, confirm=0.5, keep=0.1)
    assert not any(regions for _, regions in track(video(20), Fake(score=0.4), "face", options))
    assert all(regions for _, regions in track(video(20), Fake(score=0.6), "face", options))

    class Rising(Fake):
        def __call__(self, image):
            return [
                d._replace(score=0.2 if int(image[0, 0, 0]) < 12 else 0.9) for d in super().__call__(image)
            ]

    assert all(regions for _, regions in track(video(20), Rising(), "face", options))


def test_a_cut_ends_tracks_and_is_looked_at_from_both_sides():
    def cut():
        yield from video(13)
        for t in range(13, 30):
            image = 255 - SCENE
            image[0, 0] = (t, 0, 0)
            yield image

    fake = Fake()
    result = list(track(cut(), fake, "face", TrackingOptions(every=6, extrapolate=5)))
    assert all(cover(regions, t) > 0.8 for t, (_, regions) in enumerate(result[:13]))
    assert not any(regions for _, regions in result[13:])


def test_every_frame_once_in_order_whatever_the_length():
    for length in (1, 2, 15, 16, 17, 40):
        numbers = [int(image[0, 0, 0]) for image, _ in track(video(length), Fake(), "face")]
        assert numbers == list(range(length))
    assert list(track(iter(()), Fake(), "face")) == []


def test_looking_stays_within_the_budget_and_a_still_picture_costs_nearly_nothing():
    moving = Fake()
    list(track(video(60), moving, "face", TrackingOptions(every=4, refresh=1000)))
    assert sum(moving.looks) <= 60 / 4 + 3
    still = Fake()
    image = next(video(1))
    list(track((image for _ in range(60)), still, "face", TrackingOptions(every=1, refresh=1000)))
    assert sum(still.looks) <= 2


def test_only_what_changed_is_looked_at_and_what_was_seen_elsewhere_stays():
    fake = Fake(local=True)
    result = list(track(video(50), fake, "face", TrackingOptions(every=1, refresh=1000)))
    assert sum(fake.looks) < 0.6 * 50
    assert all(cover(regions, t) > 0.9 for t, (_, regions) in enumerate(result))
    assert all(r.how == "detected" for _, regions in result for r in regions)


def test_memory_is_bounded():
    import gc
    import weakref

    alive: list[weakref.ref] = []

    def counted():
        for image in video(200, lambda t: t < 50):
            alive.append(weakref.ref(image))
            yield image

    most = 0
    for _ in track(counted(), Fake(), "face", TrackingOptions(max_gap=16)):
        gc.collect(0)
        most = max(most, sum(ref() is not None for ref in alive))
    assert most <= 16 + 4


def test_closeness_and_cuts():
    box = (10.0, 10.0, 30.0, 30.0)
    near = closeness([box, box], [box, (40.0, 10.0, 60.0, 30.0), (10.0, 10.0, 200.0, 200.0)])
    assert near.shape == (2, 3) and near[0, 0] == 1 and near[1, 1] < 0 and near[0, 2] == 0
    assert closeness([], [box]).shape == (0, 1)
    grey = SCENE[..., 0]
    assert is_cut(grey, 255 - grey) and not is_cut(grey, np.roll(grey, 8, 1)) and not is_cut(grey, grey)


def test_where_two_ways_lead_apart_both_are_hidden():
    """A look that slid off the face must not pull the hidden region with it."""
    assert union((0, 0, 10, 10), (4, 20, 12, 30)) == (0, 0, 12, 30)
