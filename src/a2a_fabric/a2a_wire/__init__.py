"""Facts of the A2A protocol's wire that its door and its runtime share; neither knows the other."""
