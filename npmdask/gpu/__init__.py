"""Products on an accelerator, and whether one pays."""
