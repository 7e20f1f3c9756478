"""R2D2's network."""

from typing import NamedTuple

import flax.linen as nn

from agents.networks import DuelingHead, over_time
from agents.recurrent import LstmCore, Memory, with_previous
from replay.steps import Array, Tree


class Inputs(NamedTuple):
    """What the network sees, [T, B]."""

    observation: Tree  # [T, B, *obs]
    action: Array  # [T, B] int32, of the row before
    reward: Array  # [T, B] float32, of the row before
    first: Array  # [T, B] bool, there is no row before


class RecurrentQ(nn.Module):
    """Action values by a torso, an LSTM that also sees the action and reward before, and a dueling head."""

    torso: nn.Module
    actions: int
    lstm_size: int
    head_size: int

    @nn.compact
    def __call__(self, memory: Memory, inputs: Inputs) -> tuple[Array, Memory]:
        """Memory [B, lstm_size] before the first row -> q [T, B, A], memory after the last row."""
        features = over_time(self.torso, inputs.observation)
        seen = with_previous(features, inputs.action, self.actions, inputs.reward, inputs.first)
        memory, outputs = LstmCore(self.lstm_size)(memory, seen, inputs.first)
        head = DuelingHead(_as_it_is, self.actions, self.head_size)
        return over_time(head, outputs), memory


def _as_it_is(features: Array) -> Array:
    return features
