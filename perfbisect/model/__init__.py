"""The nouns: metric, cell, change, attempt."""
