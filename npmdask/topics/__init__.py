"""Topics of documents: what is done with them once they are found, and the words and counts that they are found in."""
