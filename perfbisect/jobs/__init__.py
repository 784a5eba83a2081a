"""One function a job; they hand events to a sink and never print."""
