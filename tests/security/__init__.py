"""What is protected against what: docs/explanation/security.md."""
