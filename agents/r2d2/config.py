"""The numbers of R2D2."""

import dataclasses

from agents.names import NetworkName, OptimizerName
from replay.spec import ReplaySpec


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class R2d2Config:
    """Defaults are Kapturowski et al. (2019), table 2, where they are given there; small tasks want others."""

    replay: ReplaySpec = ReplaySpec(
        burn_in=40,
        trace=80,
        n_step=5,
        period=40,
        sampler="prioritized",
        priority_exponent=0.9,
        max_size=100_000,  # of 40 new steps each: 4 million, as in the paper
        min_size=5_000,
    )
    network: NetworkName = "mlp"
    hidden_sizes: tuple[int, ...] = (64,)  # dense layers between observation and LSTM
    lstm_size: int = 64  # the paper: 512
    head_size: int = 64  # hidden units of each stream of the dueling head, 0: no hidden layer; the paper: 512
    discount: float = 0.997
    reward_clip: float = 0.0  # rewards are clipped to [-clip, clip]; 0: not, as the values are rescaled
    epsilon_base: float = 0.4  # of the ladder of exploration
    epsilon_exponent: float = 7.0  # alpha of the ladder
    importance_exponent: float = 0.6  # beta
    priority_mix: float = 0.9  # eta: share of the largest error in a sequence's priority, beside that of the mean
    priority_floor: float = 1e-3  # added to every priority: an item of 0 would never be drawn
    target_period: int = 2_500  # learner steps between copies to the target network
    optimizer: OptimizerName = "adam"
    learning_rate: float = 1e-4
    rmsprop_decay: float = 0.95
    epsilon: float = 1e-3  # of the optimiser
    max_gradient_norm: float = 40.0
