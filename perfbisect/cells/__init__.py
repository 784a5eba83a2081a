"""Workloads as files: loading, linting, matching, importing."""
