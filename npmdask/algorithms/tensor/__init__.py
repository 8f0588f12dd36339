"""The robust tensor power method, its rounds, and its private form."""
