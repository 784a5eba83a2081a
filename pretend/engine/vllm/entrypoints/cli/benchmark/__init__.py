"""The ``bench`` subcommands."""
