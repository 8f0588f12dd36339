"""What a run will need and how far it will come, said before its first pass: memory, passes, steps, privacy."""
