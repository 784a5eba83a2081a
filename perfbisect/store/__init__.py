"""Journals: the truth about what was measured. Job folders, events, attempts, and who works on them."""
