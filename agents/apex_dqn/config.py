"""The numbers of Ape-X DQN."""

import dataclasses

from agents.names import NetworkName, OptimizerName
from replay.spec import ReplaySpec


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ApexConfig:
    """Defaults are Horgan et al. (2018), appendix C, where they are given there; small tasks want others."""

    replay: ReplaySpec = ReplaySpec(
        trace=1, n_step=3, period=1, sampler="prioritized", priority_exponent=0.6, max_size=100_000, min_size=1_000
    )
    network: NetworkName = "mlp"
    hidden_sizes: tuple[int, ...] = (64, 64)  # dense layers of the torso
    head_size: int = 64  # hidden units of each stream of the dueling head; 0: no hidden layer
    discount: float = 0.99
    reward_clip: float = 0.0  # rewards are clipped to [-clip, clip]; 0: not. The paper: 1
    epsilon_base: float = 0.4  # of the ladder of exploration
    epsilon_exponent: float = 7.0  # alpha of the ladder
    importance_exponent: float = 0.4  # beta at the first learner step
    importance_exponent_final: float = 1.0  # beta from importance_steps on; the paper: 0.4
    importance_steps: int = 100_000  # learner steps
    priority_floor: float = 1e-3  # added to every absolute TD error
    target_period: int = 2_500  # learner steps between copies to the target network
    optimizer: OptimizerName = "centered_rmsprop"
    learning_rate: float = 0.00025 / 4
    rmsprop_decay: float = 0.95
    epsilon: float = 1.5e-7  # of the optimiser
    max_gradient_norm: float = 40.0
