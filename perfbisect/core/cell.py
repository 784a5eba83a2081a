"""Cell: exactly what is measured."""
