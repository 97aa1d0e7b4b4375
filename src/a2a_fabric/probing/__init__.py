"""Finding out what speaks at an address or in a program, by asking it in each protocol's own words."""
