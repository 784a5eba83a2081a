"""The JSON documents of verbs about cells that others wrote, and about what changes stand for."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from perfbisect.render.documents import ChangeDocument, Document


class DifferenceDocument(Document):
    """A field in which two workloads differ."""

    field: str
    left: str
    right: str


class CellMatchDocument(Document):
    """A cell beside what was seen: left there, right here."""

    cell: str
    digest: str
    differences: tuple[DifferenceDocument, ...]


class CellsMatchDocument(Document):
    """``perfbisect cells match``: the nearest cells; ``missing``: what the text does not say of a cell.

    ``apart``: the fields of which one would tell the cells that agree from each other; empty where one alone
    agrees, so that nothing that is missing makes it another known cell. ``warnings``: cell files that cannot
    be read, which are left out.
    """

    schema_: Literal["perfbisect.cells-match/1"] = Field(default="perfbisect.cells-match/1", alias="schema")
    exact: bool
    missing: tuple[str, ...]
    apart: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    cells: tuple[CellMatchDocument, ...]


class FindingDocument(Document):
    """Something wrong with a field of a cell."""

    level: Literal["error", "warning"]
    field: str
    message: str


class CellLintDocument(Document):
    """A cell that was checked."""

    cell: str
    findings: tuple[FindingDocument, ...]


class CellsLintDocument(Document):
    """``perfbisect cells lint``. ``client``: what would load the server, where that is not the commit's own:
    data set and backend are then not checked; empty where they are. ``warnings``: cell files that cannot be
    read and were not named."""

    schema_: Literal["perfbisect.cells-lint/1"] = Field(default="perfbisect.cells-lint/1", alias="schema")
    engine: str
    at: str
    client: str = ""
    warnings: tuple[str, ...] = ()
    cells: tuple[CellLintDocument, ...]


class ImportedFileDocument(Document):
    """A specification: the cell files made of it, how many of its workloads are switched off, which are left
    out and why, and what must be brought before the cells can run."""

    spec: str
    files: tuple[str, ...]
    cells: int
    switched_off: int
    left_out: tuple[str, ...]
    to_bring: tuple[str, ...]


class CellsImportDocument(Document):
    """``perfbisect cells import``."""

    schema_: Literal["perfbisect.cells-import/1"] = Field(default="perfbisect.cells-import/1", alias="schema")
    files: tuple[ImportedFileDocument, ...]
    cells: int


class PackageDocument(Document):
    """A package that an image replaces; ``version`` empty: only removed."""

    name: str
    version: str


class ChangesShowDocument(Document):
    """``perfbisect changes show``: ``vllm`` is what the engine under it is, ``none`` where no pin is read."""

    schema_: Literal["perfbisect.changes-show/1"] = Field(default="perfbisect.changes-show/1", alias="schema")
    change: ChangeDocument
    kind: Literal["commit", "release"]
    vllm: Literal["commit", "release", "unknown", "none"]
    tag: str
    release: str
    commit: str
    packages: tuple[PackageDocument, ...]
