"""What pages are made of: HTML without a framework, plots as data."""
