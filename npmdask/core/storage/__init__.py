"""Open data and read their chunks; write folders that appear whole or not at all."""
