"""How wrong answers can be: what is said, of every kind of run, and how often it is true."""
