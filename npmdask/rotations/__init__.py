"""Components that are turned: varimax, promax, or towards others."""
