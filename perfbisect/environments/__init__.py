"""A change as an interpreter: built once, cached, checked."""
