"""Hand-over: a study's model as files for others, with a card that says what it is worth and where it comes from."""
