"""``A A^T`` of few sparse rows with many columns."""
