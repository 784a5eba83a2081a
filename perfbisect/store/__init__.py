"""Journals: the truth about what was measured."""
