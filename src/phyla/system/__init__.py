"""What phyla needs of the operating system: locks, signals, ends of processes, patience with what is away."""
