"""``perfbisect schema``."""

from __future__ import annotations

import click

from perfbisect.commands import options


@click.command(short_help="JSON Schemas of documents and cells.")
@click.argument("verb", nargs=-1, metavar="[VERB|cell]")
@options.as_json
def schema(verb: tuple[str, ...], as_json: bool) -> int:
    """The JSON Schema of what VERB prints with --json, or of a cell file. Without VERB: list all schemas.

    The number behind a document's name grows with every incompatible change; a new field does not change it.

    \b
    Examples:
      perfbisect schema
      perfbisect schema bisect
      perfbisect schema track detect
      perfbisect schema cell
    """
    import json

    from perfbisect.cells.schema import cell_schema
    from perfbisect.cli.schema_registry import document_names, verb_schema
    from perfbisect.commands.documents import SchemasDocument
    from perfbisect.commands.output import emit
    from perfbisect.common.suggest import hint
    from perfbisect.errors import UsageError

    verbs = document_names()
    if not verb:
        document = SchemasDocument(verbs={name: tuple(names) for name, names in verbs.items()})
        width = max(map(len, verbs))
        emit(
            document,
            [f"{name:<{width}}  {', '.join(names)}" for name, names in verbs.items()],
            as_json=as_json,
        )
        return 0
    name = " ".join(verb)
    if name != "cell" and name not in verbs:
        known = ["cell", *verbs]
        raise UsageError(
            f"no schema of {name!r}{hint(name, known)}; there are: {', '.join(known)}",
            next_step="perfbisect schema",
        )
    click.echo(json.dumps(cell_schema() if name == "cell" else verb_schema(name), indent=2))
    return 0
