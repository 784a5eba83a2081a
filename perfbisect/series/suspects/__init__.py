"""Ranks the commits that may be behind an alert."""
