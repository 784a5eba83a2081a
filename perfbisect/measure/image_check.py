"""How far an image that the server makes lies from the cell's reference: one request, after the runs."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from perfbisect.errors import MachineError, ServerError
from perfbisect.measure.executor import Sink
from perfbisect.measure.record import Record
from perfbisect.serving.server import Server
from perfbisect.system import logs, processes
from perfbisect.system.processes import Asked

DISTANCE = "image_distance:median"

COMPARE = """
import sys
from PIL import Image, ImageChops, ImageStat
made, wanted = (Image.open(name).convert("RGB") for name in sys.argv[1:])
if made.size != wanted.size:
    sizes = ["{} x {}".format(*image.size) for image in (made, wanted)]
    sys.exit(f"the image has {sizes[0]} pixels, the reference {sizes[1]}")
means = ImageStat.Stat(ImageChops.difference(made, wanted)).mean
print(sum(means) / len(means) / 255)
"""
"""Mean difference of the pixels over all colours, of their full range. Pillow is the engine's."""

_LIMIT = 60.0


class _NoDistanceError(Exception):
    """Why there is none."""


def compare(record: Record, server: Server, env: Mapping[str, str], asked: Asked, sink: Sink) -> None:
    """Adds the distance to every run of the attempt, unless the client has told one.

    What was measured stays: where no distance can be had, the guard is one that was not reported, and why
    stands in the attempt's facts.

    :raises Interrupted: ``asked`` said so.
    """
    reference, request = record.request.cell.reference, server.command.likeness
    if reference is None or request is None or not record.runs:
        return
    made = record.request.folder / "reference-made.png"
    try:
        made.write_bytes(_image(server.value(request, record.request.limits.first_request, asked)))
        distance = _distance(record, made, Path(reference.image), env, asked)
    except (ServerError, MachineError, OSError, _NoDistanceError) as error:
        why = logs.neutral(str(error), 400)
        record.facts["reference"] = {"image": reference.image, "why_not": why}
        sink("warning", {"text": f"the image was not compared with its reference: {why}"})
        return
    record.facts["reference"] = {"image": reference.image, "made": made.name, "distance": distance}
    record.runs[:] = [replace(run, values={DISTANCE: distance, **run.values}) for run in record.runs]


def _image(told: object) -> bytes:
    """The image in an answer: base64, bare or as a data URL."""
    text = str(told)
    try:
        return base64.b64decode(text.partition(",")[2] if text.startswith("data:") else text, validate=True)
    except binascii.Error:
        raise _NoDistanceError("the answer holds no image in base64") from None


def _distance(record: Record, made: Path, wanted: Path, env: Mapping[str, str], asked: Asked) -> float:
    environment = record.environment
    if environment is None:
        raise _NoDistanceError("there is no environment")
    log = made.with_suffix(".log")
    log.unlink(missing_ok=True)
    ended = processes.run(
        (str(environment.interpreter), "-c", COMPARE, str(made), str(wanted)),
        env=env,
        cwd=made.parent,
        log=log,
        token=f"{record.token}.likeness",
        timeout=_LIMIT,
        asked=asked,
    )
    if ended.timed_out or ended.code != 0:
        raise _NoDistanceError(logs.tail(log) or f"the comparison ended with {ended.code}")
    try:
        return float(log.read_text("utf-8").split()[-1])
    except (ValueError, IndexError):
        raise _NoDistanceError(f"the comparison printed no number: {logs.tail(log)}") from None
