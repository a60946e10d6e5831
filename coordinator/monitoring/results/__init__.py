"""The results of studies beyond one number: class by class, and study beside study. For the page and the
report."""
