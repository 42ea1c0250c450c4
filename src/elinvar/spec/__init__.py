"""What is learned and how it is computed, as values; and the way from files to them."""
