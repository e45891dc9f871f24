"""A generator and a discriminator with a learning rate each, trained as a population."""
