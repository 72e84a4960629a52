"""`veil anonymize`: hide who is in one video or in several."""

from __future__ import annotations

from pathlib import Path

from veil.apps.pipeline import anonymize_video
from veil.cli.arguments import AnonymizerOptions, Flag, Output, chosen_method, joined_names
from veil.cli.terminal import print_error, print_result, progress_bar
from veil.core import VeilError
from veil.media.inputs import plan
from veil.media.video import Codec
from veil.methods import make


def anonymize(
    inputs: list[str],
    /,
    *,
    output: Output,
    hiding: AnonymizerOptions = AnonymizerOptions(),
    codec: Codec = "h264",
    quality: int | None = None,
    report: str | None = None,
    preview: str | None = None,
    explain: str | None = None,
    require_match: Flag = False,
    overwrite: Flag = False,
    salvage: Flag = False,
) -> int:
    """Hide who is in a video, and keep what they do.

    Every input becomes one output of the same length, timing and size, without sound or metadata. If anything goes
    wrong, nothing is written.

    Parameters
    ----------
    inputs
        Videos, pictures, folders, the number of a camera, or the URL of a stream (Ctrl-C ends it and keeps the file).
    output
        The file to write (.mp4, .mov or .mkv; the suffix of a picture for a picture), or a folder where there are
        several inputs.
    codec
        ffv1 is lossless and needs .mkv.
    quality
        Constant rate factor: lower is better and larger [23 for h264, 28 for h265].
    report
        JSON file with what was hidden in every frame (a folder, where there are several inputs).
    preview
        Picture with frames of the anonymized video (a folder, where there are several inputs).
    explain
        Folder for pictures of why the method hid what it hid: heat maps over anonymized frames, how much was hidden
        over time, and a contact sheet (a folder of such folders, where there are several inputs).
    require_match
        Refuse a video in which nothing to hide is found.
    overwrite
        Replace outputs that exist.
    salvage
        Where frames of a damaged video cannot be decoded, go on without them instead of refusing the video.
    """
    method = chosen_method(hiding.method, hiding.with_, hiding.region)
    anonymizer = make(
        method, region=hiding.region, hide=joined_names(hiding.hide), also=joined_names(hiding.also)
    )
    jobs = plan(inputs, output, codec)
    single = len(jobs) == 1 and jobs[0].target == Path(output)
    failed = 0
    for number, job in enumerate(jobs):
        message = f"{number + 1} of {len(jobs)}" if len(jobs) > 1 else "anonymizing"
        try:
            if not single:
                for folder in (output, report, preview, explain):
                    if folder:
                        (Path(folder) / job.target.relative_to(output)).parent.mkdir(
                            parents=True, exist_ok=True
                        )
            with progress_bar(message) as progress:
                result = anonymize_video(
                    job.source,
                    job.target,
                    anonymizer,
                    audio=hiding.audio,
                    codec=codec,
                    quality=quality,
                    overwrite=overwrite,
                    salvage=salvage,
                    progress=progress,
                    report=_beside(report, ".json", job.target, None if single else output),
                    preview=_beside(preview, ".jpg", job.target, None if single else output),
                    explain=_beside(explain, "", job.target, None if single else output),
                    require_match=require_match,
                )
            print_result(result.sentence())
        except VeilError as error:
            if single:
                raise
            failed += 1
            print_error(error)
        except OSError as error:
            print_error(f"{error.filename or job.target} cannot be written: {error.strerror or error}.")
            failed += 1
    if failed and not single:
        print_error(f"{failed} of {len(jobs)} inputs failed.")
    return 2 if failed else 0


def _beside(place: str | None, suffix: str, target: Path, root: str | None) -> Path | None:
    """Where the report, preview or explanation of a video goes: as named, or its mirror in the named folder."""
    if place is None or root is None:
        return Path(place) if place else None
    mirror = Path(place) / target.relative_to(root)
    return mirror.with_name(mirror.name + suffix)
