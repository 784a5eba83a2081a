"""Nightly specifications of any form -> cell documents; the content decides the form."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from perfbisect.cells.importers import perf_eval, vllm_ci, vllm_omni
from perfbisect.cells.importers.base import (
    Specification,
    SpecificationFile,
    describe_value,
    number_duplicates,
)
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
    found.cells = number_duplicates(found.cells)
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
        return vllm_ci.read_offline(entries)
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
