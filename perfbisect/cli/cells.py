"""``perfbisect cells``."""

from __future__ import annotations

import posixpath
from pathlib import Path
from typing import TYPE_CHECKING

import click

from perfbisect.cli.groups import Verbs
from perfbisect.commands import options

if TYPE_CHECKING:
    from perfbisect.cells.importers.base import Source, Specification
    from perfbisect.changes.git import Repository

_SHOWN = 3


@click.command(short_help="Which cell a bench command or a result file is of.")
@click.argument("text")
@click.option(
    "--among", type=click.Path(path_type=Path), multiple=True, help="Cell files or folders besides."
)
@options.as_json
def match(text: str, among: tuple[Path, ...], as_json: bool) -> int:
    """Which cell TEXT is of: a bench command, with the server's where it is known, each on a line of its own,
    or the name of a result file. @FILE reads the text from a file.

    Told are all cells that agree with it and what tells those apart, or the nearest ones with the fields
    that differ, and which of the seven things that make a cell the text does not say.

    \b
    Examples:
      perfbisect cells match result_test_qwen3_tts_base_seed-tts_64_128_inna_outna_20260519-190024.json
      perfbisect cells match "vllm bench serve --model Qwen/Qwen3-8B --num-prompts 48 --max-concurrency 1"
      perfbisect cells match @report.md

    Exit code: 0 a cell agrees with all that is said, 4 none does.
    """
    from perfbisect.cells.loading import known_cells, load_cells
    from perfbisect.cells.match import apart, nearest, sighting
    from perfbisect.commands.documents import CellMatchDocument, CellsMatchDocument, DifferenceDocument
    from perfbisect.commands.output import emit, report_text
    from perfbisect.common.digests import canonical_json
    from perfbisect.common.text import line
    from perfbisect.errors import EXIT_INCONCLUSIVE, EXIT_OK

    seen = sighting(report_text(text))
    files: list[Path] = []
    for path in among:
        files += sorted(path.glob("*.yaml")) if path.is_dir() else [path]
    known, warnings = known_cells(files)
    found = nearest(seen, [*known, *(cell for path in dict.fromkeys(files) for cell in load_cells(path))])

    def shown(value: object) -> str:
        return value if isinstance(value, str) else canonical_json(value)

    document = CellsMatchDocument(
        exact=bool(found) and found[0].exact,
        missing=seen.missing,
        apart=apart([one.cell for one in found if one.exact]),
        warnings=warnings,
        cells=tuple(
            CellMatchDocument(
                cell=one.cell.name,
                digest=one.cell.digest,
                differences=tuple(
                    DifferenceDocument(field=f, left=shown(a), right=shown(b)) for f, a, b in one.differing
                ),
            )
            for one in ([one for one in found if one.exact] or found[:_SHOWN])
        ),
    )
    lines = []
    for one in document.cells:
        fields = f"differs in {len(one.differences)}" if one.differences else "agrees with all that is said"
        lines.append(f"{one.cell}: {fields}")
        lines += [f"  {row.field}: {line(row.left)} there, {line(row.right)} here" for row in one.differences]
    if document.exact and len(document.cells) > 1:
        lines.append(f"{len(document.cells)} cells agree: what is said does not tell them apart")
        lines.append(f"these would: {', '.join(document.apart)}")
    if document.missing:
        alone = "; no other known cell agrees" if document.exact and len(document.cells) == 1 else ""
        lines.append(f"not said: {', '.join(document.missing)}{alone}")
    lines += [f"warning: {line(text, 400)}" for text in document.warnings]
    emit(document, lines, as_json=as_json)
    return EXIT_OK if document.exact else EXIT_INCONCLUSIVE


@click.command(short_help="Check cells against an engine's sources at a commit.")
@click.argument("names", nargs=-1, metavar="[CELL...]")
@click.option("--at", "at", metavar="REV", default="HEAD", show_default=True, help="The commit.")
@options.env
@options.client
@options.repo
@options.as_json
def lint(
    names: tuple[str, ...],
    at: str,
    env: str | None,
    client: str | None,
    repo: Path | None,
    as_json: bool,
) -> int:
    """Check CELLs, by default all, against the checkout of an engine at a commit; nothing is imported.

    Found are a data set or backend that its client does not know there, a deploy YAML that is not there
    (and since when it is), an endpoint that refuses the model's kind, an option that its server does not
    mention, what is fetched while it is measured, and fixed ports. Where --client or --env (or those of
    perfbisect.yaml) name a client that is not the commit's, data set and backend are that one's to know.

    \b
    Example:
      perfbisect cells lint tts_default_voice_high_c --repo vllm-omni --at v0.24.0

    Exit code: 0 nothing or only warnings, 2 an error was found.
    """
    from perfbisect.cells.lint import lint as rules
    from perfbisect.cells.loading import known_cells, load_cells
    from perfbisect.commands.documents import CellLintDocument, CellsLintDocument, FindingDocument
    from perfbisect.commands.output import emit
    from perfbisect.commands.workspace import place
    from perfbisect.common.text import line
    from perfbisect.environments.spec import pinned_client
    from perfbisect.errors import EXIT_OK, EXIT_USAGE
    from perfbisect.setup.checkout import Checkout, facts_of

    here = place(repo=repo)
    repository = here.needed_repository()
    other = pinned_client(here.setting("env", env) or "", here.setting("client", client) or "")
    commit = repository.resolve(at)
    checkout = Checkout(repository, commit.id)
    named = [cell for name in names for cell in load_cells(name)]
    asked, warnings = (tuple(named), ()) if names else known_cells()
    cells, lines, wrong = [], [], False
    for cell in asked:
        deploy = cell.deploy_yaml
        path = deploy.path if deploy is not None and deploy.origin else None
        found = rules(cell, facts_of(checkout, path, cell.serve_args), own_client=not other)
        wrong = wrong or any(one.level == "error" for one in found)
        rows = tuple(FindingDocument(level=f.level, field=f.field, message=f.message) for f in found)
        cells.append(CellLintDocument(cell=cell.name, findings=rows))
        lines += [f"{cell.name}: {f.level}: {f.field}: {line(f.message, 400)}" for f in found]
    lines += [f"warning: {line(text, 400)}" for text in warnings]
    document = CellsLintDocument(
        engine=checkout.engine, at=commit.id, client=other, warnings=warnings, cells=tuple(cells)
    )
    told = f"{len(cells)} cells checked against {checkout.engine} at {commit.short}"
    if other:
        lines.append(f"data set and backend are not checked: {line(other)} is the client")
    emit(document, [*lines, told], as_json=as_json)
    return EXIT_USAGE if wrong else EXIT_OK


@click.command("import", short_help="Make cell files of nightly performance specifications.")
@click.argument("specs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="SPEC.json...")
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Folder for the cells.")
@click.option(
    "--at", "at", metavar="REV", help="Read the SPECs as they are at this commit of the repository."
)
@options.repo
@options.as_json
def import_verb(
    specs: tuple[Path, ...], output: Path, at: str | None, repo: Path | None, as_json: bool
) -> int:
    """Make cell files of the performance SPECs of a nightly, one a workload, in a folder.

    vLLM-Omni's lists of servers and vLLM's serving tests are read; which one it is, the content says. Paired
    lists stay a ladder in one file, lists that are crossed become one; what is switched off is counted, what
    cannot be measured here is told; audio and text twins of one name are two files. Headline and guards suit
    what the answers hold. Baselines are kept as known. A file that is there already is replaced.

    What is in no SPEC is not in the cells: variables that a pipeline sets, and the machine.

    \b
    Examples:
      perfbisect cells import vllm-omni/tests/dfx/perf/tests/test_tts.json -o cells
      perfbisect cells import .buildkite/performance-benchmarks/tests/serving-tests.json -o cells --at v0.14.0
    """
    from perfbisect.cells.importers import read_specification
    from perfbisect.cells.importers.base import read_file
    from perfbisect.cells.loading import load_cells, write_cell
    from perfbisect.commands.documents import CellsImportDocument, ImportedFileDocument
    from perfbisect.commands.output import emit
    from perfbisect.commands.workspace import place
    from perfbisect.common.text import line

    repository = place(repo=repo).needed_repository() if at else None
    sources = [_at(repository, at, spec) if repository and at else read_file(spec) for spec in specs]
    read = [(spec, read_specification(source)) for spec, source in zip(specs, sources, strict=True)]
    _apart(read)
    output.mkdir(parents=True, exist_ok=True)
    rows, lines = [], []
    for spec, found in read:
        paths = [write_cell(output, one) for one in found.cells]
        count = sum(len(load_cells(path)) for path in paths)
        needs = dict.fromkeys(need for one in found.cells for need in one.needs)
        row = ImportedFileDocument(
            spec=str(spec),
            files=tuple(map(str, paths)),
            cells=count,
            switched_off=len(found.off),
            left_out=tuple(f"{one.place}: {one.why}" for one in found.left_out),
            to_bring=tuple(
                f"{output / need.path}: {need.origin}" for need in needs if not (output / need.path).exists()
            ),
        )
        off = f", {row.switched_off} workloads switched off" if found.off else ""
        lines.append(f"{spec.name}: {count} cells in {len(paths)} files{off}")
        lines += [f"  left out: {line(told)}" for told in row.left_out]
        lines += [f"  to bring: {line(told)}" for told in row.to_bring]
        rows.append(row)
    document = CellsImportDocument(files=tuple(rows), cells=sum(row.cells for row in rows))
    emit(document, [*lines, f"{document.cells} cells in {output}"], as_json=as_json)
    return 0


def _at(repository: Repository, at: str, spec: Path) -> Source:
    """A specification as it is at a commit.

    :raises RevisionError: there is no such commit, or it has no such file.
    :raises UsageError: the file is no text.
    """
    from perfbisect.cells.importers.base import Source
    from perfbisect.errors import RevisionError, UsageError

    commit = repository.resolve(at)
    full = spec.absolute()
    path = full.relative_to(repository.path) if full.is_relative_to(repository.path) else spec
    folder = path.parent.as_posix()

    def beside(name: str) -> str | None:
        try:
            return text(posixpath.normpath(posixpath.join(folder, name)))
        except RevisionError:
            return None

    def text(name: str) -> str:
        try:
            return repository.read(commit.id, name).decode("utf-8")
        except UnicodeDecodeError as error:
            raise UsageError(f"{name} at {commit.short} cannot be read: {error}") from None

    return Source(path, text(path.as_posix()), beside, commit)


def _apart(read: list[tuple[Path, Specification]]) -> None:
    """:raises UsageError: two specifications make a file of one name."""
    from perfbisect.errors import UsageError

    first: dict[str, Path] = {}
    for spec, found in read:
        for one in found.cells:
            other = first.setdefault(one.stem, spec)
            if other != spec:
                raise UsageError(
                    f"{other} and {spec} both make {one.stem}.yaml",
                    next_step="import one after the other, each into a folder of its own",
                )


@click.group(cls=Verbs, short_help="List, show, check and compare cells.")
def cells() -> None:
    """List, show, check and compare cells: the workloads that can be measured.

    \b
    Example:
      perfbisect cells list
    """


for verb in (match, lint, import_verb):
    cells.add_command(verb)


@cells.command("list", short_help="Every cell that can be named.")
@options.as_json
def list_verb(as_json: bool) -> int:
    """Every cell that can be named: those in ./cells and those shipped.

    \b
    Example:
      perfbisect cells list --json
    """
    from perfbisect.cells.loading import list_cells, load_cells
    from perfbisect.cli.schema import CellFileDocument, CellsDocument
    from perfbisect.commands.output import emit
    from perfbisect.common.text import line
    from perfbisect.errors import UsageError

    rows = []
    for file in list_cells():
        names: tuple[str, ...] = ()
        description = error = ""
        try:
            found = load_cells(file.path)
            names, description = tuple(cell.name for cell in found), found[0].description
        except UsageError as wrong:
            error = f"{wrong.where or file.path}: {wrong.message}"
        rows.append(
            CellFileDocument(
                name=file.name,
                path=str(file.path),
                shipped=file.shipped,
                cells=names,
                description=description,
                error=error,
            )
        )
    width = max((len(name) for row in rows for name in row.cells or (row.name,)), default=0)
    lines = []
    for row in rows:
        told = line(row.error or row.description)
        for name in row.cells or (row.name,):
            lines.append(f"{name:<{width}}  {told}")
    emit(CellsDocument(cells=tuple(rows)), lines, as_json=as_json)
    return 0


@cells.command(short_help="What a cell measures.")
@click.argument("cell")
@click.option("--variant", metavar="NAME", help="As this variant serves it.")
@options.repo
@options.as_json
def show(cell: str, variant: str | None, repo: Path | None, as_json: bool) -> int:
    """What CELL measures: the block that is shown before anything starts.

    \b
    Example:
      perfbisect cells show text_cpu_llama100m
    """
    from perfbisect.cells.loading import load_cells
    from perfbisect.cli.schema import CellShowDocument
    from perfbisect.commands.output import emit
    from perfbisect.commands.workspace import place
    from perfbisect.jobs.documents import cell_document
    from perfbisect.model.cell import apply_variant
    from perfbisect.report.console import cell_lines

    repository = place(repo=repo).repository if repo else None

    def read_at(sha: str, path: str) -> str:
        assert repository is not None
        return repository.read(sha, path).decode("utf-8")

    found = load_cells(cell, read_at=read_at if repository else None)
    if variant:
        found = tuple(apply_variant(one, variant) for one in found)
    shown = tuple(cell_document(one, one.metric) for one in found)
    document = CellShowDocument(cells=shown, workloads=tuple(one.workload() for one in found))
    lines = [text for one in shown for text in (*cell_lines(one), "")]
    emit(document, lines[:-1], as_json=as_json)
    return 0


@cells.command(short_help="Check cell files.")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@options.as_json
def validate(files: tuple[str, ...], as_json: bool) -> int:
    """Check cell FILEs: all are read; of each that is wrong the place and what is allowed there are told.

    \b
    Example:
      perfbisect cells validate cells/*.yaml

    Exit code: 0 all are valid, 2 one is not.
    """
    from perfbisect.cells.loading import load_cells
    from perfbisect.cli.schema import CellsValidateDocument, FileCheckDocument
    from perfbisect.commands.output import emit
    from perfbisect.errors import EXIT_OK, EXIT_USAGE, UsageError
    from perfbisect.report.console import error_lines

    checks, lines = [], []
    for file in files:
        try:
            names = tuple(cell.name for cell in load_cells(file))
        except UsageError as wrong:
            checks.append(FileCheckDocument(file=file, cells=(), error=wrong.message, where=wrong.where))
            lines += error_lines(wrong.message, wrong.where or file, None)
            continue
        checks.append(FileCheckDocument(file=file, cells=names, error=None, where=None))
        lines.append(f"{file}: {', '.join(names)}")
    valid = all(check.error is None for check in checks)
    emit(CellsValidateDocument(valid=valid, files=tuple(checks)), lines, as_json=as_json)
    return EXIT_OK if valid else EXIT_USAGE


@cells.command(short_help="Where two cells differ.")
@click.argument("a")
@click.argument("b")
@options.as_json
def diff(a: str, b: str, as_json: bool) -> int:
    """Where the workloads of two cells differ: attempts of cells that differ are never compared.

    \b
    Example:
      perfbisect cells diff text_throughput text_prefix_repetition
    """
    from perfbisect.cells.loading import load_cell
    from perfbisect.cli.schema import CellsDiffDocument
    from perfbisect.commands.documents import DifferenceDocument
    from perfbisect.commands.output import emit
    from perfbisect.common.text import line
    from perfbisect.model.cell import difference

    left, right = load_cell(a), load_cell(b)
    rows = tuple(DifferenceDocument(field=f, left=x, right=y) for f, x, y in difference(left, right))
    document = CellsDiffDocument(left=left.name, right=right.name, comparable=not rows, differences=rows)
    lines = [f"{row.field}: {line(row.left)} -> {line(row.right)}" for row in rows]
    emit(document, lines or [f"the same workload: {left.digest}"], as_json=as_json)
    return 0
