"""``nightly`` as a wing."""

from perfbisect.commands.wings import SERIES, Wing

WING = Wing(
    commands=(
        (
            "nightly",
            SERIES,
            "Measure every night, report changes, find the commit.",
            "nightly.command:NightlyRequest",
        ),
    )
)
