"""`veil anonymize`: hide who is in one video or in several."""

from __future__ import annotations

from veil.apps.pipeline import anonymize_video
from veil.cli.arguments import AnonymizerOptions, Flag, Output, chosen_method, joined_names
from veil.cli.terminal import print_error, print_result, progress_bar
from veil.core import VeilError, io_errors
from veil.media.outputs import plan_outputs
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
    planned = plan_outputs(inputs, output, codec)
    single = planned[0].root is None
    failed = 0
    for number, one in enumerate(planned):
        message = f"{number + 1} of {len(planned)}" if len(planned) > 1 else "anonymizing"
        beside = one.beside(report, ".json"), one.beside(preview, ".jpg"), one.beside(explain, "")
        try:
            with io_errors(one.target, "written"), progress_bar(message) as progress:
                one.make_folders(*beside)
                result = anonymize_video(
                    one.source,
                    one.target,
                    anonymizer,
                    audio=hiding.audio,
                    codec=codec,
                    quality=quality,
                    overwrite=overwrite,
                    salvage=salvage,
                    progress=progress,
                    report=beside[0],
                    preview=beside[1],
                    explain=beside[2],
                    require_match=require_match,
                )
            print_result(result.sentence())
        except VeilError as error:
            if single:
                raise
            failed += 1
            print_error(error)
    if failed:
        print_error(f"{failed} of {len(planned)} inputs failed.")
    return 2 if failed else 0
