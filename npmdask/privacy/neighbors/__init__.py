"""Who the neighbours of a data set are and how far they move a product."""
