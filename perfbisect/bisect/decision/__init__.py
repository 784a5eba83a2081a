"""The decisions of a bisection: a pure fold over its events."""
