"""Builders of environments, one kind a module."""
