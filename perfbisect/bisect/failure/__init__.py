"""The search for the change since which an engine does not start, crashes, hangs or answers wrongly."""
