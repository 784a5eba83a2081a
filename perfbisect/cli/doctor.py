"""``perfbisect doctor``."""

from __future__ import annotations

import click

from perfbisect.cli import options


@click.command(short_help="Look at this machine.")
@click.option("--online", is_flag=True, help="Ask the package registry too.")
@options.state
@options.as_json
def doctor(online: bool, state: object, as_json: bool) -> int:
    """Look at this machine: is what measuring needs there, and what to do where it is not.

    \b
    Example:
      perfbisect doctor --online

    Exit code: 0 fit to measure (warnings included), 5 not.
    """
    from pathlib import Path

    from perfbisect.cli.checks import all_checks
    from perfbisect.cli.documents import DoctorDocument
    from perfbisect.cli.output import emit
    from perfbisect.cli.place import place
    from perfbisect.errors import EXIT_OK, EXIT_OUTSIDE
    from perfbisect.render.safe import line

    here = place(state=state if isinstance(state, Path) else None)
    checks = all_checks(here, online=online)
    fit = all(check.state != "bad" for check in checks)
    lines = []
    for check in checks:
        lines.append(f"{check.state:<8} {check.name:<10} {line(check.found)}")
        if check.advice:
            lines.append(f"{'':<20}{line(check.advice)}")
    emit(DoctorDocument(fit=fit, checks=checks), lines, as_json=as_json)
    return EXIT_OK if fit else EXIT_OUTSIDE
