"""``perfbisect schema``."""

from __future__ import annotations

import click

from perfbisect.cli import options


@click.command(short_help="JSON Schemas of documents and cells.")
@click.argument("verb", nargs=-1, metavar="[VERB|cell]")
@options.as_json
def schema(verb: tuple[str, ...], as_json: bool) -> int:
    """The JSON Schema of what VERB prints with --json, or of a cell file. Without VERB: which there are.

    The number behind a document's name grows where a reader of the one before would go wrong; what is new
    beside the old does not.

    \b
    Examples:
      perfbisect schema
      perfbisect schema bisect
      perfbisect schema track detect
      perfbisect schema cell
    """
    import json

    from perfbisect.cli import schemas
    from perfbisect.cli.documents import SchemasDocument
    from perfbisect.config.schema import cell_schema
    from perfbisect.core.nearest import hint
    from perfbisect.errors import UsageError

    verbs = schemas.document_names()
    if not verb:
        if as_json:
            document = SchemasDocument(verbs={name: tuple(names) for name, names in verbs.items()})
            click.echo(json.dumps(document.model_dump(by_alias=True), indent=2))
            return 0
        width = max(map(len, verbs))
        for name, documents in verbs.items():
            click.echo(f"{name:<{width}}  {', '.join(documents)}")
        return 0
    name = " ".join(verb)
    if name != "cell" and name not in verbs:
        known = ["cell", *verbs]
        raise UsageError(
            f"no schema of {name!r}{hint(name, known)}; there are: {', '.join(known)}",
            next_step="perfbisect schema",
        )
    click.echo(json.dumps(cell_schema() if name == "cell" else schemas.verb_schema(name), indent=2))
    return 0
