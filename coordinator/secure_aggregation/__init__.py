"""The coordinator's half of secure aggregation: what it passes on, how masks leave a sum, and the mean.

No network; rounds and compute may import it.
"""
