"""A method plug-in that trains nothing: silos add noise to the model, the coordinator averages. To measure the wire."""
