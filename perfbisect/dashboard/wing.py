"""``dashboard`` as a wing."""

from perfbisect.commands.wings import SERIES, Wing

WING = Wing(
    commands=(
        ("dashboard build", "", "Write the site into a folder.", "dashboard.command:build"),
        ("dashboard open", "", "Open a site in the browser.", "dashboard.command:open_site"),
    ),
    groups=(
        (
            "dashboard",
            SERIES,
            "A static site of series, alerts, suspects and bisections.",
            "A static site: what is wrong now, every cell's series, alerts with their suspects, bisections.",
            "dashboard build -o site --repo vllm-omni",
        ),
    ),
)
