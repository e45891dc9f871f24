"""A population of PPO agents that train together in one JAX program."""
