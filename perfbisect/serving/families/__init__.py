"""How a kind of model is served: a cell and a change's engine -> the server to start, as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from perfbisect.common.digests import digest
from perfbisect.model.cell import Cell

OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
"""What keeps an engine or a client from asking a hub for anything."""


@dataclass(frozen=True)
class Endpoint:
    """Where an attempt's server listens and under which model name it answers: both of this attempt alone."""

    port: int
    model_name: str
    host: str = "127.0.0.1"

    @property
    def base_url(self) -> str:
        return f"http://{self.host}:{self.port}"


@dataclass(frozen=True)
class Engine:
    """What commands depend on of the engine that will run: options come and go from commit to commit.

    ``date`` is the commit's, ISO 8601, ``version`` the package's; empty: not known. ``root`` is the folder
    on this machine with the engine's own tree as the change has it (its package stands in it).
    """

    version: str = ""
    date: str = ""
    root: str = ""


UNKNOWN = Engine()
"""Nothing is known of the engine: its commands are those of the newest that perfbisect knows."""


@dataclass(frozen=True)
class Request:
    """One HTTP request with a JSON body, and how to see that its answer is a real one."""

    path: str
    body: Mapping[str, object]
    must_contain: str = ""
    """A dotted path into the JSON answer whose value must be there and not empty: ``choices.0.text``.

    A star stands for any place of a list: ``choices.*.message.audio.data``.
    """
    content_type: str = ""
    """How the answer's content type must begin where it is no JSON: ``audio/``."""
    at_least: int = 0
    """Bytes that such an answer must have: fewer are no sound."""
    form: bool = False
    """The body is sent as a multipart form, in which bytes are a file."""


@dataclass(frozen=True)
class ServerCommand:
    """What starts a server: arguments after the interpreter (``-m module ...``), environment and probe."""

    args: tuple[str, ...]
    env: Mapping[str, str]
    first_request: Request
    reset_requests: tuple[Request, ...] = ()
    """Requests that empty the server's caches between runs; none where the engine cannot (one run a launch).

    An answer in JSON with ``"success": false`` has emptied nothing.
    """
    files: Mapping[str, str] = field(default_factory=dict)
    """Texts by file name, to be written into the folder in which the server is started."""
    likeness: Request | None = None
    """Asks for the image of the cell's reference once more; at its path stands the image, in base64."""


class Family(Protocol):
    """One kind of model. A module that satisfies this and a line in ``FAMILIES`` is a new family."""

    name: str
    headline: str
    guards: tuple[str, ...]

    def server(self, cell: Cell, endpoint: Endpoint, engine: Engine = UNKNOWN) -> ServerCommand:
        """The server for one attempt.

        :raises UsageError: the cell asks for what this family cannot serve.
        :raises ServerError: the engine, as far as it is known, cannot serve this cell; another one can.
        """
        ...


def _families() -> dict[str, Family]:
    from perfbisect.serving.families import staged, text

    return {
        "text": text.FAMILY,
        "tts": staged.TTS,
        "omni": staged.OMNI,
        "diffusion": staged.DIFFUSION,
    }


FAMILIES: dict[str, Family] = _families()

_ANY = Endpoint(port=1, model_name="any")


def server_digest(cell: Cell) -> str:
    """Digest of what is started for a cell: command, process environment, files, devices, kind of model, and
    the state of model and tokenizer; 16 hex digits. Equal ones are one server.

    A deploy YAML that is the change's own stands in it by its path: of one change it is one text.

    :raises UsageError: the cell asks for what its family cannot serve.
    """
    command = FAMILIES[cell.family].server(cell, _ANY)
    started = {
        "family": cell.family,
        "args": command.args,
        "env": dict(command.env),
        "files": dict(command.files),
        "reset": [request.path for request in command.reset_requests],
        "revision": [cell.revision.model, cell.revision.tokenizer],
        "gpus": cell.gpus,
    }
    return digest(started)[:16]


def suites(cells: Sequence[Cell]) -> tuple[tuple[Cell, ...], ...]:
    """The cells by the server that they share, each cell once, in the order in which they were given.

    A cell whose server's caches cannot be emptied between cells is alone.

    :raises UsageError: a cell asks for what its family cannot serve.
    """
    found: dict[str, list[Cell]] = {}
    for number, cell in enumerate(cells):
        forgets = FAMILIES[cell.family].server(cell, _ANY).reset_requests
        found.setdefault(server_digest(cell) if forgets else f"alone {number}", []).append(cell)
    return tuple(tuple(group) for group in found.values())
