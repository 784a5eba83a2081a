"""Values -> text or files."""
