"""``perfbisect schema``."""

from __future__ import annotations

import click


@click.command(short_help="JSON Schemas of documents and cells.")
@click.argument("verb", nargs=-1, required=True, metavar="VERB|cell")
@click.option("--json", "as_json", is_flag=True, help="Accepted like everywhere; a schema is JSON anyway.")
def schema(verb: tuple[str, ...], as_json: bool) -> int:
    """The JSON Schema of what VERB prints with --json, or of a cell file.

    \b
    Examples:
      perfbisect schema bisect
      perfbisect schema cells validate
      perfbisect schema cell
    """
    import json

    from pydantic.json_schema import models_json_schema

    from perfbisect.cli.documents import VERBS
    from perfbisect.config.schema import cell_schema
    from perfbisect.errors import UsageError

    del as_json
    name = " ".join(verb)
    if name == "cell":
        click.echo(json.dumps(cell_schema(), indent=2))
        return 0
    if name not in VERBS:
        raise UsageError(f"no schema of {name!r}; there are: cell, {', '.join(sorted(VERBS))}")
    models = VERBS[name]
    top, definitions = models_json_schema([(model, "serialization") for model in models])
    references = [top[(model, "serialization")] for model in models]
    document = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"perfbisect {name} --json",
    }
    click.echo(json.dumps(document | {"anyOf": references} | definitions, indent=2))
    return 0
