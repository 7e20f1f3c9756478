"""The numbers of IMPALA."""

import dataclasses

from agents.names import NetworkName, OptimizerName
from replay.spec import ReplaySpec


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ImpalaConfig:
    """Defaults are Espeholt et al. (2018), table G.1 (Atari) where they are given there; small tasks want others."""

    replay: ReplaySpec = ReplaySpec(queue=True, trace=20, n_step=1, period=20, max_size=64)
    network: NetworkName = "mlp"
    hidden_sizes: tuple[int, ...] = (64, 64)  # dense layers of the torso
    discount: float = 0.99
    reward_clip: float = 0.0  # rewards are clipped to [-clip, clip]; 0: not
    baseline_cost: float = 0.5
    entropy_cost: float = 0.01
    clip_rho: float = 1.0  # rho-bar, bound of the importance ratio in targets and policy gradient; at least 1
    optimizer: OptimizerName = "adam"
    learning_rate: float = 0.0006
    annealing_steps: int = 0  # learner steps over which the learning rate falls linearly to 0; 0: it stays
    rmsprop_decay: float = 0.99
    epsilon: float = 1e-5  # of the optimiser; the paper's RMSProp: 0.01, for a summed loss
    max_gradient_norm: float = 40.0  # of the mean loss; the paper clips the gradient of a sum at 40
