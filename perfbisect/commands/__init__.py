"""Composition: build a request, open a session, run, report."""
