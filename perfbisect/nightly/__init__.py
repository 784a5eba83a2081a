"""The nightly job: schedule, measure, detect, notify."""
