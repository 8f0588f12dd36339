"""What finished answers tell: how many components mean something, which of them mix, what the data look like."""
