"""The jobs' fixtures: reports are made from real jobs."""

from tests.jobs.conftest import new_job, plan_for

__all__ = ["new_job", "plan_for"]
