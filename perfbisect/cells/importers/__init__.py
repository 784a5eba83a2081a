"""Nightly specifications of any form -> cell documents; the content decides the form."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

from perfbisect.cells.importers import perf_eval, tpu_inference, vllm_ascend, vllm_ci, vllm_omni
from perfbisect.cells.importers.base import LONGEST_STEM, Specification, SpecificationFile, describe_value
from perfbisect.common.json_text import WRONG_SHAPE, parse_json
from perfbisect.common.text import line
from perfbisect.common.yaml_source import parse
from perfbisect.errors import LocatedError

_IMPORTERS = (vllm_omni, vllm_ci, perf_eval, vllm_ascend, tpu_inference)
"""Each reads the documents that it takes, and says their form in a few words."""


def read_specification(source: SpecificationFile) -> Specification:
    """The cells of a specification. :raises LocatedError: neither JSON nor YAML, or of no known form."""
    document = _document(source)
    try:
        found = _read(source, document)
    except WRONG_SHAPE as error:
        reason = line(f"cannot be read ({type(error).__name__}: {error})")
        raise LocatedError(reason, file=source.file) from error
    # Cells of one name are numbered, and a name is cut to what a file can have.
    stems = [cell.stem[:LONGEST_STEM] for cell in found.cells]
    all_of, seen = Counter(stems), Counter[str]()
    for index, (cell, stem) in enumerate(zip(found.cells, stems, strict=True)):
        seen[stem] += 1
        found.cells[index] = replace(cell, stem=f"{stem}-{seen[stem]}" if all_of[stem] > 1 else stem)
    return found


def _read(source: SpecificationFile, document: object) -> Specification:
    for importer in _IMPORTERS:
        if importer.takes(document):
            found: Specification = importer.read(source, document)
            return found
    forms = ", ".join(importer.FORM for importer in _IMPORTERS)
    raise source.wrong("", f"is of no form that is known: {describe_value(document)}", forms)


def _document(source: SpecificationFile) -> object:
    if source.path.suffix in (".yaml", ".yml"):
        try:
            return parse(source.text, Path(source.file)).data
        except LocatedError:
            # Specifications may share parts by merge keys, which a cell cannot.
            return parse(source.text, Path(source.file), foreign=True).data
    try:
        return parse_json(source.text)
    except json.JSONDecodeError as error:
        raise LocatedError(f"is no JSON: {error.msg}", file=source.file, line=error.lineno) from None
    except ValueError as error:
        raise LocatedError(f"is no JSON: {error}", file=source.file) from None
