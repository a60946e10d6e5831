"""The results of studies: the numbers of one, class by class, and study beside study. For `status`, the page and the
report."""
