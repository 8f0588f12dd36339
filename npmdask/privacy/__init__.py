"""Private releases: requests, neighbours, mechanisms, the ledger, and audits of all of it."""
