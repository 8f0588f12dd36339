"""Missing values: filled, left out, modelled, or counted pair by pair."""
