"""A verb that is none: the nearest ones are named, whatever click itself can do."""

from __future__ import annotations

from typing import Any

import click
import pytest

from perfbisect.cli.app import app, run
from perfbisect.cli.groups import Verbs


def old_click(self: click.Group, ctx: click.Context, args: list[str]) -> Any:
    """What a click does that names nothing, as those before 8.4."""
    command = self.get_command(ctx, args[0])
    if command is None:
        ctx.fail(f"No such command {args[0]!r}.")
    return args[0], command, args[1:]


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        (["bisct"], "No such command 'bisct'; nearest: bisect"),
        (["BISECT"], "No such command 'BISECT'; nearest: bisect"),
        (["track", "sus"], "No such command 'sus'; nearest: suspects"),
        (["qqqqqq"], "No such command 'qqqqqq'\n"),
    ],
)
@pytest.mark.parametrize("old", [True, False])
def test_the_nearest_verbs_are_named(
    typed: list[str],
    told: str,
    old: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if old:
        monkeypatch.setattr(click.Group, "resolve_command", old_click)
    assert run(typed) == 2
    assert told in capsys.readouterr().err


def test_every_group_names_them() -> None:
    found: list[click.Command] = [app]
    for command in found:
        found += command.commands.values() if isinstance(command, click.Group) else []
    assert [one.name for one in found if isinstance(one, click.Group) and not isinstance(one, Verbs)] == []
    assert len([one for one in found if isinstance(one, Verbs)]) > 5
