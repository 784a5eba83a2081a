"""Images and videos: vLLM-Omni with a diffusion pipeline, judged by the latency of a request."""

from __future__ import annotations

from perfbisect.core.cell import Cell
from perfbisect.errors import UsageError
from perfbisect.families import Request
from perfbisect.families.requests import CHAT, EDITS, IMAGES, VIDEOS, chat_image, edit, image, video
from perfbisect.families.staged import StagedFamily

BACKENDS = {"vllm-omni": CHAT, "openai": IMAGES, "v1/videos": VIDEOS}
"""What vLLM-Omni's own diffusion benchmark calls an endpoint, before it was named by its path (#3137)."""

_UNSET = "/v1/completions"
_KINDS = {CHAT: chat_image, IMAGES: image, EDITS: edit, VIDEOS: video}


def endpoint_of(cell: Cell) -> str:
    """Where the cell's requests go: its endpoint, or the one that its backend stands for.

    :raises UsageError: neither is one of diffusion's.
    """
    found = BACKENDS.get(cell.backend, cell.endpoint) if cell.endpoint == _UNSET else cell.endpoint
    if found not in _KINDS:
        raise UsageError(
            f"cell {cell.name}: endpoint {found} (backend {cell.backend}) is none of diffusion's: "
            f"{', '.join(_KINDS)}",
            field="endpoint",
        )
    return found


def first_request(cell: Cell, model: str) -> Request:
    """One small picture or video of the cell's own size, in two steps."""
    return _KINDS[endpoint_of(cell)](cell, model)


def likeness(cell: Cell, model: str) -> Request | None:
    """Asks for the image of the cell's reference; None where it brings none.

    :raises UsageError: the cell's endpoint answers with no image, or makes it from another one.
    """
    if cell.reference is None:
        return None
    endpoint, made = endpoint_of(cell), {CHAT: chat_image, IMAGES: image}
    if endpoint not in made or cell.task != "t2i":
        raise UsageError(
            f"cell {cell.name}: reference: compared are images made from text (task t2i, at "
            f"{', '.join(made)}), and this is {cell.task or 'no task'} at {endpoint}",
            field="reference",
        )
    return made[endpoint](cell, model, cell.reference.prompt, cell.reference.body)


FAMILY = StagedFamily("diffusion", "latency", ("failed",), first_request, likeness)
