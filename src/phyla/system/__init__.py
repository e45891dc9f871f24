"""Operating system services: locks, signals, ends of processes, patience with unreachable services."""
