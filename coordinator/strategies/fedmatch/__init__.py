"""FedMatch at the coordinator, a file for each of its parts. Imported by name when a study asks for it."""

from semisilo.coordinator.strategies.fedmatch.strategy import FedMatchStrategy

__all__ = ["FedMatchStrategy"]
