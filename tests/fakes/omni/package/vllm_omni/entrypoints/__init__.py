"""How it is started."""
