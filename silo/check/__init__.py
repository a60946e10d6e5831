"""`silo check`: what would go wrong, found before it does, with a forecast of time and bytes. Imported by `cli`."""
