"""Where a launch runs: devices, slots, leases, load."""
