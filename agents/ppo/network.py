"""PPO's network."""

from typing import NamedTuple

import flax.linen as nn

from agents.policies import Parameters, PolicyHead
from replay.spec import ActionSpec
from replay.steps import Array, Tree


class Outputs(NamedTuple):
    """What the network says."""

    policy: Parameters  # {...: [N, A]}
    value: Array  # [N] float32


class ActorCritic(nn.Module):
    """A policy and a value, each on its own torso, or both on one."""

    policy_torso: nn.Module
    value_torso: nn.Module | None  # None: the policy's
    action: ActionSpec

    @nn.compact
    def __call__(self, observation: Tree) -> Outputs:
        """[N, *obs] -> Outputs [N, ...]."""
        features = self.policy_torso(observation)
        policy = PolicyHead(self.action)(features)
        if self.value_torso is not None:
            features = self.value_torso(observation)
        value = nn.Dense(1, kernel_init=nn.initializers.orthogonal(1.0))(features)
        return Outputs(policy, value[:, 0])
