"""Experiments: what is launched until a question is answered, and the templates of their reports."""
