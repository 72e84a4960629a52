"""`veil audit`: measure utility and leakage of anonymizers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from veil.cli.arguments import Flag, Repeated, Several, command_line, data_options, key_value
from veil.cli.terminal import print_message, print_result, progress_bar
from veil.core import VeilError


def audit(
    method: str | None = None,
    /,
    *,
    output: Annotated[str | None, Parameter(name=["--output", "-o"])] = None,
    compare: Several = (),
    data: str = "synthetic",
    root: str | None = None,
    private: str | None = None,
    private_root: str | None = None,
    option: Repeated = (),
    suite: Literal["quick", "standard", "full"] = "standard",
    quick: Flag = False,
    seeds: int | None = None,
    actions: Several = (),
    attributes: Several = (),
    weights: Repeated = (),
    videos: Annotated[tuple[str, str] | None, Parameter(negative="")] = None,
    gallery: str | None = None,
    by: Literal["face", "body"] = "face",
    device: str | None = None,
    jobs: int | None = None,
    fresh: Flag = False,
    forget: Flag = False,
) -> int:
    """Train fresh attackers on a method's output; report what they still recognize, and the utility that is left.

    Writes a report (audit.html), the same for papers (audit.md) and for programs (audit.json). Earlier results are
    cached: adding a method to a comparison costs one method.

    Parameters
    ----------
    method
        The method, as for `veil anonymize`; "raw" is untouched video.
    output
        The folder to write to.
    compare
        Several methods side by side.
    data
        The dataset whose actions are to be kept, and whose people are attacked.
    root
        The folder that holds it. The synthetic dataset needs none.
    private
        Another dataset, whose people are attacked instead (cross-dataset), in the folder --private-root.
    private_root
        The folder that holds the other dataset.
    option
        KEY=VALUE for the dataset's reader; may be given several times.
    suite
        How much is trained: quick (minutes on two cores), standard (a GPU), full (many networks).
    quick
        The same as --suite quick.
    seeds
        How often every recognizer is trained from the start [1 for quick, else 3].
    actions
        Only these actions: labels that the method was not trained with.
    attributes
        Only these attributes.
    weights
        NETWORK=FILE: published weights with which recognizers of that network begin.
    videos
        RAW ANONYMIZED: two folders, to audit videos that another tool anonymized; needs --gallery.
    gallery
        Photographs of known people, one folder or name each, to be recognized in the videos.
    by
        What they are recognized by in the videos.
    device
        cpu, cuda, cuda:1, … [a GPU where there is one].
    jobs
        Recognizers trained at once [one a core without a GPU, else 1].
    fresh
        Measure again what is cached of this audit; other audits stay cached.
    forget
        Delete the cache of all audits and stop; it holds results and the weights of recognizers, but no frames.
    """
    from veil.audit.command import audit_methods, audit_videos

    if forget:
        return _forget(method or compare or videos)
    if output is None:
        raise VeilError("the folder of the report is missing: give it with -o.", code="output-missing")

    with progress_bar("audit", "") as progress:
        if videos or gallery:
            if method or compare or not videos or not gallery:
                raise VeilError(
                    "--videos RAW ANONYMIZED needs --gallery PHOTOGRAPHS and no method: give both, and only these.",
                    code="videos-and-gallery",
                )
            written, sentences = audit_videos(
                Path(videos[0]),
                Path(videos[1]),
                Path(gallery),
                Path(output),
                by=by,
                command=command_line(),
                progress=progress,
            )
        else:
            written, sentences = audit_methods(
                [*([method] if method else []), *compare],
                Path(output),
                data=data,
                root=root,
                private=private,
                private_root=private_root,
                options=data_options(option),
                suite="quick" if quick else suite,
                seeds=seeds,
                actions=actions,
                attributes=attributes,
                weights=dict(map(key_value, weights)),
                device=device,
                jobs=jobs,
                fresh=fresh,
                command=command_line(),
                progress=progress,
                warn=print_message,
            )
    for sentence in sentences:
        print_result(sentence)
    print_result(f"report: {written}")
    return 0


def _forget(further: object) -> int:
    from veil.audit.cache import cache_folder, forget

    if further:
        raise VeilError(
            "--forget only deletes the cache: leave out what is to be audited.", code="forget-alone"
        )
    print_result(f"{forget()} files deleted from {cache_folder()}")
    return 0
