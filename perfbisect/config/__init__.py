"""Files -> values, with line numbers."""
