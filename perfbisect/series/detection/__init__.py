"""Change-point detection in one and in many series."""
