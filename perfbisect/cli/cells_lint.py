"""``perfbisect cells lint``: does a cell make sense for an engine at a commit?"""

from __future__ import annotations

from pathlib import Path

import click

from perfbisect.cli import options


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
    from perfbisect.cli.cell_documents import CellLintDocument, CellsLintDocument, FindingDocument
    from perfbisect.cli.output import emit
    from perfbisect.cli.place import place
    from perfbisect.config.cells import known_cells, load_cells
    from perfbisect.core.lint import lint as rules
    from perfbisect.environments.grammar import pinned_client
    from perfbisect.errors import EXIT_OK, EXIT_USAGE
    from perfbisect.render.safe import line
    from perfbisect.system.checkout import Checkout, facts_of

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
