"""Trials over several machines: an engine that is there starts one rank of the command on each."""
