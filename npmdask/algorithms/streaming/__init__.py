"""Algorithms that see each row once: streaming power, Oja, MSG, Frequent Directions."""
