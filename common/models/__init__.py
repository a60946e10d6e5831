"""The networks, and how a study's settings become one."""

from common.models.factory import ModelBuilder, build_model, check_model, initial_model, model_builder, model_names
from common.models.small_cnn import SmallCNN
from common.models.wide_resnet import WideResNet28

__all__ = [
    "ModelBuilder", "SmallCNN", "WideResNet28", "build_model", "check_model", "initial_model", "model_builder",
    "model_names",
]
