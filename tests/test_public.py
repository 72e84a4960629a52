"""The public names are exactly these."""

import inspect

import veil
from veil.methods import ANONYMIZERS, parameters


def test_public_names():
    expected = {
        *("ANONYMIZERS", "Anonymizer", "Frames", "Region", "Report", "VeilError", "Veiled", "__version__"),
        *("anonymize_video", "make", "to_clip", "to_frames"),
    }
    assert set(veil.__all__) == expected
    assert all(hasattr(veil, name) for name in expected)


def test_every_public_name_is_documented():
    for name in veil.__all__:
        thing = getattr(veil, name)
        assert not (inspect.isclass(thing) or inspect.isfunction(thing)) or inspect.getdoc(thing), name


def test_every_parameter_is_documented():
    for kind in ANONYMIZERS.values():
        assert inspect.getdoc(kind)
        assert all(parameter.meaning for parameter in parameters(kind))
