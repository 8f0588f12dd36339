"""Complex data: rows and matrices whose entries have real and imaginary parts."""
