"""``comment`` as a wing."""

from perfbisect.commands.wings import MEASURE, Wing

WING = Wing(
    commands=(
        (
            "comment",
            MEASURE,
            "Answer a comment on a pull request with a measurement.",
            "comment.command:comment",
        ),
    )
)
