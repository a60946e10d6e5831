"""Looking at a trained federation from outside: functions of a model, of soft labels and of every silo's images.

For simulations, where one process may see all images. Results are dataclasses of numbers and lists
(`semisilo.common.config.to_dict` makes JSON of them).
"""

from semisilo.diagnostics.loss_surface import LossSurface, loss_surface, random_direction
from semisilo.diagnostics.problem import ObjectiveValue, Problem, labels_of, objective_of, statistics_of
from semisilo.diagnostics.stationarity import StationarityGap, stationarity_gap

__all__ = ["LossSurface", "ObjectiveValue", "Problem", "StationarityGap", "labels_of", "loss_surface", "objective_of",
           "random_direction", "stationarity_gap", "statistics_of"]
