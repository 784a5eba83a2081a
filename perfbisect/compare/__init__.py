"""Comparisons, checks and runs: verdict, job and report."""
