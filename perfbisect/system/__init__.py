"""Operating system: processes, ports, HTTP, files, clock and logs."""
