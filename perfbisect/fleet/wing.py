"""``fleet`` as a wing: what other machines are called with, and what jobs need of them."""

from perfbisect.commands.wings import SET_UP, Wing

WING = Wing(
    commands=(
        ("agent run", "", "Make the launches of a bundle.", "fleet.command:run"),
        ("agent build", "", "Build the environment of a change.", "fleet.command:build"),
        ("agent look", "", "What this machine can measure.", "fleet.command:look"),
        (
            "agent install",
            "",
            "Install perfbisect on machines that ssh or Ray reaches.",
            "fleet.install:install",
        ),
    ),
    groups=(
        (
            "agent",
            SET_UP,
            "Launches for a job on another machine.",
            "Make launches for a job that runs on another machine.",
            "agent look --gpus 1 --json",
        ),
    ),
    fleets="fleet.specs:FLEETS",
)
