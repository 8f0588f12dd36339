"""Views of private runs, for the commands that manage runs."""
