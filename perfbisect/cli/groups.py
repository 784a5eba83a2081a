"""Groups of verbs."""

from __future__ import annotations

import click

from perfbisect.common.text import hint


class Verbs(click.Group):
    """A group that suggests the nearest commands for an unknown one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve a command; raises click.UsageError with suggestions."""
        typed = args[0]
        if not typed.startswith("-") and self.get_command(ctx, typed) is None:
            raise click.UsageError(f"No such command {typed!r}{hint(typed, self.commands, 0.6)}", ctx)
        return super().resolve_command(ctx, args)
