"""What is protected against what: docs/security.md."""
