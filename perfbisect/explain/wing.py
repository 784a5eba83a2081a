"""``explain`` as a wing."""

from perfbisect.commands.wings import MEASURE, Wing

WING = Wing(
    commands=(
        (
            "explain",
            MEASURE,
            "Why a change is slower: its phase, functions, hunk.",
            "explain.command:ExplainRequest",
        ),
    ),
    experiments={"hunks": "explain.hunk_job:HUNKS", "profile": "explain.profile_job:PROFILE"},
    documents=("explain.hunk_job:HunksDocument", "explain.profile_job:ProfileDocument"),
)
