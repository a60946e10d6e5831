"""Who gets which images: the deals of the papers, by name and by seed. Imported by simulations."""
