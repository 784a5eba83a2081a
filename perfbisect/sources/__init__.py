"""Results made elsewhere -> reported points."""
