"""Everything to run it for real; see infra/README.md."""
