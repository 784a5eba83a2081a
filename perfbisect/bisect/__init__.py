"""Bisection: search, confirmation, job and report."""
