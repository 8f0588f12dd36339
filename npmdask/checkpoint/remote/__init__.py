"""Run stores whose place is a URL: fetched into a local copy, every commit published."""
