"""Data and runs in object stores, snapshots of versioned repositories."""
