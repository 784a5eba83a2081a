"""How a cell is served, as data, and the server that runs."""
