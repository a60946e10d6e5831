"""Small wrong changes of the program, each of which a quick test must notice: `make mutants`. Nothing imports this."""
