"""The coordinator's half of secure aggregation: what it passes on, how the masks leave the sum of the survivors, what their
mean is. No network; rounds and compute may import it.
"""
