"""Small pure helpers without a domain."""
