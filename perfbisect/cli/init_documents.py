"""The JSON document of ``perfbisect init``."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from perfbisect.render.documents import Document


class SeenDocument(BaseModel):
    """One thing that was looked at, and what was found."""

    what: str
    found: str


class InitDocument(Document):
    """``perfbisect init``.

    ``state``: what became of ``file``, or would with --dry-run: ``new``, ``same`` (it was there already),
    ``replaced``. ``difference``: lines of a diff from what was there; ``next``: a command.
    """

    schema_: Literal["perfbisect.init/1"] = Field(default="perfbisect.init/1", alias="schema")
    file: str
    state: Literal["new", "same", "replaced"]
    written: bool
    engine: str
    saw: tuple[SeenDocument, ...]
    settings: dict[str, str]
    content: str
    difference: tuple[str, ...]
    next: str
