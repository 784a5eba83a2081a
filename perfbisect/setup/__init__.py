"""First steps: checkout detection, templates, doctor."""
