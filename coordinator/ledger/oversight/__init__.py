"""What an operator oversees in the ledger: notices about silos, and going back to an earlier round of a study. Imported
by rounds and by whoever shows or writes these; it imports the ledger alone."""
