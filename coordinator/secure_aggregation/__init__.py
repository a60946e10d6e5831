"""The coordinator's half of secure aggregation: what it passes on, and how the masks leave the sum of the survivors.

No network and no disk; `coordinator.rounds` may import it.
"""
