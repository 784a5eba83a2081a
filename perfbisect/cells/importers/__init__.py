"""Nightly specifications of any form -> cell documents; the content decides the form."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from perfbisect.cells.importers import perf_eval, vllm_ci, vllm_omni
from perfbisect.cells.importers.base import LONGEST_STEM, Specification, SpecificationFile, describe_value
from perfbisect.common.json_text import WRONG_SHAPE, parse_json
from perfbisect.common.text import line
from perfbisect.common.yaml_source import parse
from perfbisect.errors import LocatedError

_FORMS = (
    "vLLM-Omni's list of servers (test_name, server_params, benchmark_params), vLLM's serving tests "
    "(test_name, server_parameters, client_parameters; in a list, or under tests with defaults), its "
    "nightly tests (common_parameters, vllm_server_parameters), or a recipe of perf-eval (vllm, vllm_bench)"
)


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
    if isinstance(document, Mapping) and {"vllm", "vllm_bench"} & set(document):
        return perf_eval.read_recipe(source, document)
    if isinstance(document, Mapping) and "tests" in document:
        return vllm_ci.read_tests(source, document)
    entries = document if isinstance(document, list) else []
    names = {name for entry in entries if isinstance(entry, Mapping) for name in entry}
    if names & {"server_parameters", "client_parameters"}:
        return vllm_ci.read_tests(source, {"tests": entries}, at="")
    if names & {"server_params", "benchmark_params"}:
        return vllm_omni.read_servers(source, entries)
    if "common_parameters" in names:
        return vllm_ci.read_nightly(source, entries)
    if "parameters" in names and names <= set(vllm_ci.OFFLINE_KEYS):
        why = "it measures the engine without a server (vllm bench latency or throughput)"
        return Specification(left_out={f"[{i}]": why for i in range(len(entries))})
    raise source.wrong("", f"is of no form that is known: {describe_value(document)}", _FORMS)


def _document(source: SpecificationFile) -> object:
    if source.path.suffix in (".yaml", ".yml"):
        return parse(source.text, Path(source.file)).data
    try:
        return parse_json(source.text)
    except json.JSONDecodeError as error:
        raise LocatedError(f"is no JSON: {error.msg}", file=source.file, line=error.lineno) from None
    except ValueError as error:
        raise LocatedError(f"is no JSON: {error}", file=source.file) from None
