"""What is said of a finished answer: how many components mean something, which mix, what its data look like."""
