"""What commands that manage runs show of private ones."""
