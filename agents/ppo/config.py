"""The numbers of PPO."""

import dataclasses

from agents.names import NetworkName, OptimizerName
from replay.spec import ReplaySpec


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PpoConfig:
    """Defaults are of Schulman et al. (2017), table 5, or of Cleanba (Huang et al. 2023); the README says which."""

    replay: ReplaySpec = ReplaySpec(queue=True, trace=128, n_step=1, period=128, max_size=64)
    network: NetworkName = "mlp"
    hidden_sizes: tuple[int, ...] = (64, 64)  # dense layers of each torso
    shared_torso: bool = False  # policy and value on one torso, as on Atari; else one each, as on MuJoCo
    discount: float = 0.99
    trace_decay: float = 0.95  # lambda of the advantages
    reward_clip: float = 0.0  # rewards are clipped to [-clip, clip]; 0: not
    reward_scale: float = 1.0  # rewards are multiplied by it, after clipping: returns of hundreds are hard to fit
    clip: float = 0.2  # epsilon, of the probability ratio. Table 5: 0.1, annealed
    value_clip: float = 0.2  # how far a value may move in one update, in scaled rewards; 0: any way
    value_cost: float = 0.5  # Table 5: 1, of a loss without our 1/2
    entropy_cost: float = 0.01
    epochs: int = 4  # passes over a batch. Table 5: 3
    minibatches: int = 4  # parts of a batch in each pass; must divide replay.trace
    normalize_advantage: bool = True  # to mean 0 and deviation 1 in each minibatch
    optimizer: OptimizerName = "adam"
    learning_rate: float = 2.5e-4
    rmsprop_decay: float = 0.99
    epsilon: float = 1e-5  # of the optimiser
    max_gradient_norm: float = 0.5
