"""``perfbisect --version``: its version, and those of all that it writes and others read."""

from __future__ import annotations

from collections import Counter

import click


def tell(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    """Prints them and ends."""
    del parameter
    if value and not context.resilient_parsing:
        for text in lines():
            click.echo(text)
        context.exit()


def lines() -> list[str]:
    """The version, then one line for each form of file or document."""
    import perfbisect
    from perfbisect.store import events
    from perfbisect.store.series_schema import VERSION

    return [
        f"perfbisect, version {perfbisect.__version__}",
        f"journal    {events.SCHEMA}",
        f"store      {VERSION}",
        f"documents  {_documents()}",
    ]


def _documents() -> str:
    """The version that most documents of ``--json`` have, then those that have another."""
    from perfbisect.cli import schemas

    names = {name for printed in schemas.document_names().values() for name in printed}
    versions = {name.rpartition("/")[0]: name.rpartition("/")[2] for name in names}
    ((usual, _),) = Counter(versions.values()).most_common(1)
    others = sorted(f"{name}/{version}" for name, version in versions.items() if version != usual)
    return ", ".join([f"{usual}", *others])
