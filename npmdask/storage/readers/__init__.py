"""Stored data as operators read them: dense, CSR, packed symmetric, packed tensor."""
