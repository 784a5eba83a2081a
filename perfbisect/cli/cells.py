"""``perfbisect cells``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from perfbisect.commands.options import Client, Env, InRepository, Repo
from perfbisect.commands.output import CommandResult
from perfbisect.commands.request import Argument, Option, prints


@prints("perfbisect.commands.cells:CellsMatchDocument")
def match(
    *,
    text: Annotated[str, Argument()],
    among: Annotated[tuple[Path, ...], Option("Cell files or folders besides.")] = (),
) -> CommandResult:
    """Find the cell that TEXT describes: the name of a result file, or the commands of a report or a pull
    request, of the server, the bench or both. @FILE reads the text from a file.

    Of each kind the first command that can be read counts: `vllm serve`, the API server's module or image,
    `vllm bench serve`, benchmark_serving.py; on lines of their own, in code, quotations or lists, over
    several lines, with variables that the text assigns. Other lines are passed over.

    Prints all cells that agree with the text and the fields that would distinguish them, or the nearest
    cells with the fields that differ, and which properties of a cell the text does not state.

    \b
    Examples:
      perfbisect cells match result_test_qwen3_tts_base_seed-tts_64_128_inna_outna_20260519-190024.json
      perfbisect cells match "vllm bench serve --model Qwen/Qwen3-8B --num-prompts 48 --max-concurrency 1"
      perfbisect cells match @report.md

    Exit code: 0 a cell agrees with the text, 4 none does.
    """
    from perfbisect.commands.cells import match_cells
    from perfbisect.commands.output import report_text

    return match_cells(report_text(text), among)


@prints("perfbisect.commands.cells:CellsLintDocument")
def lint(
    workspace: InRepository,
    *,
    names: Annotated[tuple[str, ...], Argument("[CELL...]")] = (),
    at: Annotated[str, Option("The commit.", metavar="REV")] = "HEAD",
    env: Env = None,
    client: Client = None,
) -> CommandResult:
    """Check CELLs, by default all, against the checkout of their engine at a commit; nothing is imported.
    Cells of the other engine are skipped, which is said.

    Reports data sets, backends and options that the client does not support, missing deploy YAMLs (and the
    commit that adds them), endpoints that refuse the kind of model, unknown server options, downloads during
    the measurement, and fixed ports. If --client or --env (or perfbisect.yaml) name a client other than the
    commit's, data set, backend and options of the client are not checked.

    \b
    Example:
      perfbisect cells lint tts_default_voice_high_c --repo vllm-omni --at v0.24.0

    Exit code: 0 nothing or only warnings, 2 an error was found or no cell could be checked.
    """
    from perfbisect.commands.cells import lint_cells

    repository = workspace.needed_repository()
    return lint_cells(names, repository, at, env=env or "", client=client or "")


@prints("perfbisect.commands.cells:CellsImportDocument")
def import_cells(
    workspace: InRepository,
    *,
    specs: Annotated[tuple[Path, ...], Argument("SPEC...")],
    output: Annotated[Path, Option("Folder for the cells.", ("-o", "--output"))],
    at: Annotated[
        str | None, Option("Read the SPECs as they are at this commit of the repository.", metavar="REV")
    ] = None,
) -> CommandResult:
    """Make cell files of a nightly's performance SPECs, one a workload, in a folder.

    Reads vLLM-Omni's lists of servers, vLLM's serving and nightly tests and the recipes of its perf-eval
    (YAML), recognized by content. Paired lists stay a ladder in one file; crossed lists become one ladder;
    disabled workloads are counted; unsupported ones and what is not understood are listed with their line;
    audio and text twins of one name become two files. Headline and guards suit the outputs. Baselines are
    kept as known values. Existing files are replaced by cells that load.

    Variables that a pipeline sets and the machine are not part of a SPEC, and not of the cells.

    \b
    Examples:
      perfbisect cells import vllm-omni/tests/dfx/perf/tests/test_tts.json -o cells
      perfbisect cells import .buildkite/performance-benchmarks/tests/serving-tests.json -o cells --at v0.14.0
      perfbisect cells import perf-eval/workloads/*_h200.yaml -o cells

    Exit code: 0 all was understood, 2 something was not; the cells of the rest are written.
    """
    from perfbisect.commands.cells import import_specifications

    repository = workspace.needed_repository() if at else None
    return import_specifications(specs, output, repository, at)


@prints("perfbisect.commands.cells:CellsDocument")
def list_cells() -> CommandResult:
    """Every cell that can be named: those in ./cells and those shipped.

    \b
    Example:
      perfbisect cells list --json
    """
    from perfbisect.commands.cells import list_known

    return list_known()


@prints("perfbisect.commands.cells:CellShowDocument")
def show(
    *,
    cell: Annotated[str, Argument()],
    variant: Annotated[str | None, Option("As this variant serves it.", metavar="NAME")] = None,
    repo: Repo = None,
) -> CommandResult:
    """What CELL measures: the block that is shown before anything starts.

    \b
    Example:
      perfbisect cells show text_cpu_llama100m
    """
    from perfbisect.commands.cells import show_cell
    from perfbisect.commands.workspace import open_workspace

    read_at = open_workspace(repo=repo).read_at if repo else None
    return show_cell(cell, variant, read_at)


@prints("perfbisect.commands.cells:CellsValidateDocument")
def validate(
    *,
    files: Annotated[tuple[str, ...], Argument("FILE...")],
) -> CommandResult:
    """Check all cell FILEs; for each invalid one, show the place and what is allowed there.

    \b
    Example:
      perfbisect cells validate cells/*.yaml

    Exit code: 0 all are valid, 2 one is not.
    """
    from perfbisect.commands.cells import validate_files

    return validate_files(files)


@prints("perfbisect.commands.cells:CellsDiffDocument")
def diff(
    *,
    a: Annotated[str, Argument()],
    b: Annotated[str, Argument()],
) -> CommandResult:
    """Where the workloads of two cells differ: attempts of cells that differ are never compared.

    \b
    Example:
      perfbisect cells diff text_throughput text_prefix_repetition
    """
    from perfbisect.commands.cells import diff_cells

    return diff_cells(a, b)
