"""The networks, and how a study's settings become one."""

from common.models.alexnet_like import AlexNetLike
from common.models.cnn13 import CNN13
from common.models.factory import ModelBuilder, build_model, check_model, initial_model, model_builder, model_names
from common.models.mlp_5000 import MLP5000
from common.models.resnet9 import ResNet9
from common.models.small_cnn import SmallCNN
from common.models.starting_point import StartingPoint, starting_point
from common.models.wide_resnet import WideResNet28

__all__ = [
    "CNN13", "MLP5000", "AlexNetLike", "ModelBuilder", "ResNet9", "SmallCNN", "StartingPoint", "WideResNet28",
    "build_model", "check_model", "initial_model", "model_builder", "model_names", "starting_point",
]
