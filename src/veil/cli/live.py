"""`veil live`: anonymize a camera or a stream while it is watched."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from veil.cli.arguments import Flag, Region, Repeated, With, chosen_method
from veil.cli.terminal import print_message, print_result
from veil.core import VeilError
from veil.methods import make


def live(
    *,
    camera: int | None = None,
    source: str | None = None,
    to: Repeated,
    method: str | None = None,
    with_: With = None,
    region: Region | None = None,
    loop: Flag = False,
    seconds: float | None = None,
    reconnect_timeout: float | None = None,
    share_on_network: Flag = False,
    token: Annotated[str | None, Parameter(env_var="VEIL_TOKEN")] = None,
    overwrite: Flag = False,
) -> int:
    """Anonymize a camera or a stream while it is watched; Ctrl-C ends it.

    Frames that the method has no time for are dropped, and none is shown that the method has not changed. While the
    source is silent a placeholder frame is shown, and Veil reconnects until it is back.

    Parameters
    ----------
    camera
        The number of a camera.
    source
        Instead of a camera: the URL of a stream (rtsp://…, http://…), or a file, which is played at its own speed.
    to
        window, a video file, http://127.0.0.1:8090 (a page for browsers on this machine), or rtsp://… (an RTSP server
        that accepts streams); may be given several times.
    method
        As for `veil anonymize` [selective].
    with_
        The folder of a run of `veil train`, or a file of `veil export`: a trained anonymizer instead of a method.
    region
        What the method changes, for methods that change a face, a person or the frame.
    loop
        Play a file again and again.
    seconds
        End after N seconds.
    reconnect_timeout
        End when the source was away for N seconds [never].
    share_on_network
        Let other machines see it; they must give the token.
    token
        What viewers must give, as password or as ?token=…; also read from VEIL_TOKEN.
    overwrite
        Replace a file that exists.
    """
    from veil.apps.live.run import live as show

    if (camera is None) == (source is None):
        raise VeilError("one source is needed: give --camera NUMBER or --source URL.", code="one-source")
    result = show(
        str(camera) if source is None else source,
        to,
        make(chosen_method(method, with_, region), region=region),
        loop=loop,
        seconds=seconds,
        reconnect_timeout=reconnect_timeout,
        share_on_network=share_on_network,
        token=token,
        overwrite=overwrite,
        log=print_message,
    )
    print_result(result.sentence())
    return 0
