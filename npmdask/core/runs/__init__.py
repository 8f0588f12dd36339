"""One run: from a request to a loop over passes, its commits, its answer."""
