"""Networks and vision with no opinion about privacy."""
