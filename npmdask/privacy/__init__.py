"""Private releases: requests, neighbours, mechanisms, the account of a run, what is released."""
