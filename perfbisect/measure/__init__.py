"""One attempt: build, serve, warm, measure, stop."""
