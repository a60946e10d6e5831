"""How updates and statistics are averaged where a plain weighted mean is not meant, as pure functions."""
