"""The names that configs choose from; apart from what they stand for, so that a config loads no JAX."""

from typing import Literal

NetworkName = Literal["mlp", "small_cnn", "nature_cnn", "impala_resnet"]
OptimizerName = Literal["adam", "rmsprop", "centered_rmsprop"]
