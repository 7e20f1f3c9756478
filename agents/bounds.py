"""What values the numbers of an agent may have, each by itself; how they fit together is each agent's own to check."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, NamedTuple


class Bound(NamedTuple):
    """An interval of finite numbers."""

    least: float
    most: float = math.inf
    above: bool = False  # whether `least` itself is out

    def check(self, field: str, value: float, meaning: str) -> None:
        """Refuses a value outside, naming the nearest one inside.

        Raises:
            ValueError: it is not in the interval; says the field, what it means, and what to set.
        """
        fits = self.least < value if self.above else self.least <= value
        if math.isfinite(value) and fits and value <= self.most:
            return
        low = f"above {self.least:g}" if self.above else f"at least {self.least:g}"
        high = "finite" if math.isinf(self.most) else f"at most {self.most:.10g}"
        bounds = low if not fits and math.isinf(self.most) else f"{low} and {high}"
        hint = f"a number {bounds}" if fits or self.above else f"{self.least:g} or more"
        raise ValueError(f"{field}={value!r} must be {bounds} ({meaning}). Set {field} to {hint}.")


COUNT = Bound(1)
SHARE = Bound(0, 1)
POSITIVE = Bound(0, above=True)
NOT_NEGATIVE = Bound(0)
# By field name, of whichever agent has it: what it is, and its bound.
MEANINGS: Mapping[str, tuple[str, Bound]] = {
    "learning_rate": ("the size of a step; 0 learns nothing", NOT_NEGATIVE),
    "annealing_steps": ("a count of learner steps; 0: never", NOT_NEGATIVE),
    "discount": ("what a reward is worth a step later", SHARE),
    "reward_clip": ("the largest reward that counts; 0: any", NOT_NEGATIVE),
    "reward_scale": ("what rewards are multiplied by", POSITIVE),
    "epsilon": ("what the optimiser divides by at least", POSITIVE),
    "rmsprop_decay": ("the share of the old average that is kept", SHARE),
    "max_gradient_norm": ("the length that gradients are cut to", POSITIVE),
    "epsilon_base": ("the share of random actions of the ladder's first step", SHARE),
    "epsilon_exponent": ("how steep the ladder is", NOT_NEGATIVE),
    "importance_exponent": ("how much of the bias is corrected", SHARE),
    "importance_exponent_final": ("how much of the bias is corrected in the end", SHARE),
    "importance_steps": ("a count of learner steps", COUNT),
    "priority_floor": ("added to priorities, so that none is 0", POSITIVE),
    "priority_mix": ("the share of the largest error in a priority", SHARE),
    "target_period": ("a count of learner steps", COUNT),
    "head_size": ("a count of units; 0: no hidden layer", NOT_NEGATIVE),
    "lstm_size": ("a count of units", COUNT),
    "baseline_cost": ("the weight of a part of the loss", NOT_NEGATIVE),
    "value_cost": ("the weight of a part of the loss", NOT_NEGATIVE),
    "entropy_cost": ("the weight of a part of the loss", NOT_NEGATIVE),
    "clip_rho": ("rho-bar, no less than c-bar = 1 in V-trace (Espeholt et al. 2018, section 4.1)", Bound(1)),
    "trace_decay": ("lambda, the share of later errors in an advantage", SHARE),
    "clip": ("how far a probability's ratio may go from 1", POSITIVE),
    "value_clip": ("how far a value may move; 0: any way", NOT_NEGATIVE),
    "epochs": ("a count of passes over a batch", COUNT),
    "minibatches": ("a count of parts of a batch", COUNT),
}


def check_numbers(config: Any) -> None:
    """Checks those fields of an agent's frozen config whose names are in MEANINGS.

    Raises:
        ValueError: for the first one that can't be; the message names the field, the value, why, and what to set.
    """
    for field in dataclasses.fields(config):
        if field.name in MEANINGS:
            meaning, bound = MEANINGS[field.name]
            bound.check(f"agent_config.{field.name}", getattr(config, field.name), meaning)
