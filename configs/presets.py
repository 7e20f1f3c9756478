"""Experiments to begin with: each a function, and each number one that differs from its default.

One file for all of them, as long as it is: they are read beside each other, and share what they have in common below.
"""

import dataclasses
import difflib
from collections.abc import Callable
from typing import Any

from agents.apex_dqn.config import ApexConfig
from agents.impala.config import ImpalaConfig
from agents.ppo.config import PpoConfig
from agents.r2d2.config import R2d2Config
from configs.experiment import (
    AcceleratedActorConfig,
    ActorConfig,
    EnvironmentConfig,
    EvaluatorConfig,
    Experiment,
    LearnerConfig,
    RunConfig,
    TopologyConfig,
)
from replay.spec import ReplaySpec


def apex_cartpole() -> Experiment:
    """Ape-X DQN balances a pole, from prioritized replay."""
    return Experiment(
        name="apex_cartpole",
        agent="apex_dqn",
        agent_config=_apex_small(),
        environment=EnvironmentConfig(name="CartPole-v1", per_actor=8),
        learner=LearnerConfig(batch_size=64),
        run=RunConfig(target_return=475.0),  # "solved", as Gym has it
    )


def apex_catch() -> Experiment:
    """Ape-X DQN catches a falling ball on a 10 x 5 board."""
    return Experiment(
        name="apex_catch",
        agent="apex_dqn",
        agent_config=_apex_small(),
        environment=EnvironmentConfig(name="Catch-v0", per_actor=8),
        learner=LearnerConfig(batch_size=64),
        run=RunConfig(target_return=0.95),  # of 1
    )


def apex_memory() -> Experiment:
    """Ape-X DQN names the first card of a deck, a control: it has nothing to remember it by."""
    return Experiment(
        name="apex_memory",
        agent="apex_dqn",
        agent_config=dataclasses.replace(_apex_small(), hidden_sizes=(64, 64), discount=0.9),
        environment=_first_card(),
        learner=LearnerConfig(batch_size=64),
        run=RunConfig(environment_steps=600_000),  # more than R2D2 needs
    )


def apex_minatar_breakout() -> Experiment:
    """Ape-X DQN plays Breakout on a 10 x 10 board."""
    return _apex_minatar("apex_minatar_breakout", "breakout")


def apex_minatar_asterix() -> Experiment:
    """Ape-X DQN plays Asterix on a 10 x 10 board."""
    return _apex_minatar("apex_minatar_asterix", "asterix", n_step=1, target_period=100, head_size=0)


def apex_pong() -> Experiment:
    """Ape-X DQN plays Pong from pixels, to 20 of 21 points in 750,000 steps; each frame is stored once."""
    return Experiment(
        name="apex_pong",
        agent="apex_dqn",
        agent_config=ApexConfig(
            replay=_transitions(
                max_size=300_000,
                min_size=10_000,
                samples_per_insert=4.0,
                error_buffer=20_000.0,
            ),
            network="small_cnn",
            hidden_sizes=(256,),
            head_size=128,
            reward_clip=1.0,
            importance_exponent_final=0.4,
            target_period=1_000,
            optimizer="adam",
            learning_rate=2.5e-4,
            epsilon=1e-6,
        ),
        environment=EnvironmentConfig(name="Pong-v5", per_actor=16),
        learner=LearnerConfig(batch_size=64, samples_in_flight=256, threads=2),  # actors wait for it most of the time
        evaluator=EvaluatorConfig(pause=120.0),  # a game takes a while
        run=RunConfig(target_return=18.0, target_evaluations=2),  # of 21
    )


def impala_cartpole() -> Experiment:
    """IMPALA balances a pole; each sequence is used once."""
    return Experiment(
        name="impala_cartpole",
        agent="impala",
        agent_config=_impala_small(),
        environment=EnvironmentConfig(name="CartPole-v1", per_actor=8),
        learner=LearnerConfig(batch_size=16),
        run=RunConfig(target_return=475.0),
    )


def impala_catch() -> Experiment:
    """IMPALA catches a falling ball on a 10 x 5 board."""
    return Experiment(
        name="impala_catch",
        agent="impala",
        agent_config=_impala_small(),
        environment=EnvironmentConfig(name="Catch-v0", per_actor=8),
        learner=LearnerConfig(batch_size=16),
        run=RunConfig(target_return=0.95),
    )


def impala_minatar_breakout() -> Experiment:
    """IMPALA plays Breakout on a 10 x 10 board."""
    return _impala_minatar("impala_minatar_breakout", "breakout")


def impala_minatar_asterix() -> Experiment:
    """IMPALA plays Asterix on a 10 x 10 board."""
    return _impala_minatar("impala_minatar_asterix", "asterix")


def impala_pong() -> Experiment:
    """IMPALA plays Pong from pixels; each sequence is used once."""
    return Experiment(
        name="impala_pong",
        agent="impala",
        agent_config=ImpalaConfig(
            replay=ReplaySpec(queue=True, trace=20, n_step=1, period=20, max_size=8),  # what waits grows old
            network="small_cnn",
            hidden_sizes=(256,),
            reward_clip=1.0,
            learning_rate=5e-4,
        ),
        environment=EnvironmentConfig(name="Pong-v5", per_actor=8),
        topology=TopologyConfig(shards=1),
        actor=ActorConfig(items_in_flight=8),
        # 80 steps an update: many small steps learn Pong sooner. Weights change four times while an actor gathers them.
        learner=LearnerConfig(batch_size=4, prefetch=1, publish_period=4),
        evaluator=EvaluatorConfig(episodes=4, pause=300.0),  # a game takes a while, and CPU that the others lack
        run=RunConfig(target_return=18.0),
    )


def ppo_cartpole() -> Experiment:
    """PPO balances a pole; each sequence is used in one update of several steps."""
    return _ppo_small("ppo_cartpole", "CartPole-v1", PpoConfig(replay=_ppo_replay(), learning_rate=1e-3), 475.0)


def ppo_catch() -> Experiment:
    """PPO catches a falling ball on a 10 x 5 board."""
    return _ppo_small("ppo_catch", "Catch-v0", PpoConfig(replay=_ppo_replay(), learning_rate=1e-3), 0.95)


def ppo_pendulum() -> Experiment:
    """PPO swings a pendulum up, by a torque that is any number within bounds."""
    config = PpoConfig(
        replay=_ppo_replay(trace=128),
        discount=0.9,  # as RL Baselines3 Zoo has it for Pendulum
        reward_scale=0.1,
        entropy_cost=0.0,
        epochs=10,
        minibatches=8,
        learning_rate=1e-3,
    )
    return _ppo_small("ppo_pendulum", "Pendulum-v1", config, -200.0)


def r2d2_cartpole() -> Experiment:
    """R2D2 balances a pole, with a memory it could do without."""
    return _r2d2_small("r2d2_cartpole", "CartPole-v1", 475.0)


def r2d2_catch() -> Experiment:
    """R2D2 catches a falling ball on a 10 x 5 board."""
    return _r2d2_small("r2d2_catch", "Catch-v0", 0.95)


def r2d2_memory() -> Experiment:
    """R2D2 names the first card of a deck until its end, 51 steps."""
    small = _r2d2_small("r2d2_memory", "", 0.9)  # 95 % of the answers right
    return dataclasses.replace(
        small,
        agent_config=dataclasses.replace(
            small.agent_config,
            # 60 rows to train on: from most answers a gradient reaches the first card.
            replay=dataclasses.replace(small.agent_config.replay, burn_in=0, trace=60, n_step=1, period=30),
            discount=0.9,
        ),
        environment=_first_card(),
    )


def sebulba_cartpole() -> Experiment:
    """PPO balances a pole at full speed: one accelerated actor of 16 environments."""
    return Experiment(
        name="sebulba_cartpole",
        agent="ppo",
        # 4,096 rows an update: what travels is worth the trip, and old data is two updates old at most.
        agent_config=PpoConfig(
            replay=ReplaySpec(queue=True, trace=128, n_step=1, period=128, max_size=32),
            learning_rate=1e-3,
        ),
        environment=EnvironmentConfig(name="CartPole-v1"),
        topology=TopologyConfig(shards=1, actors=0, accelerated_actors=1),
        actor=ActorConfig(items_in_flight=32),
        accelerated=AcceleratedActorConfig(threads=1, environments=16, batch_size=16),
        learner=LearnerConfig(batch_size=32, samples_in_flight=32, prefetch=1),
        run=RunConfig(target_return=475.0),
    )


def sebulba_pong() -> Experiment:
    """IMPALA plays Pong from pixels on one accelerated actor, its threads in turns."""
    return dataclasses.replace(
        impala_pong(),
        name="sebulba_pong",
        topology=TopologyConfig(shards=1, actors=0, accelerated_actors=1),
        accelerated=AcceleratedActorConfig(threads=2, environments=8, batch_size=8),
    )


PRESETS: dict[str, Callable[[], Experiment]] = {
    make.__name__: make
    for make in (
        apex_cartpole,
        apex_catch,
        apex_memory,
        apex_minatar_breakout,
        apex_minatar_asterix,
        apex_pong,
        impala_cartpole,
        impala_catch,
        impala_minatar_breakout,
        impala_minatar_asterix,
        impala_pong,
        ppo_cartpole,
        ppo_catch,
        ppo_pendulum,
        r2d2_cartpole,
        r2d2_catch,
        r2d2_memory,
        sebulba_cartpole,
        sebulba_pong,
    )
}


def preset(name: str) -> Experiment:
    """The preset of that name.

    Raises:
        ValueError: there is none; names the nearest ones.
    """
    if name not in PRESETS:
        near = difflib.get_close_matches(name, PRESETS, n=2)
        hint = f"Did you mean {' or '.join(near)}? " if near else ""
        raise ValueError(f"config={name!r} is no preset. {hint}There are: {', '.join(PRESETS)}.")
    return PRESETS[name]()


def describe_presets() -> dict[str, str]:
    """Name -> what it is, in a line."""
    return {name: (make.__doc__ or "").splitlines()[0] for name, make in PRESETS.items()}


def _transitions(n_step: int = 3, **fields: Any) -> ReplaySpec:
    """Single steps, with three-step returns if not told otherwise, drawn by priority, as Ape-X has them."""
    return ReplaySpec(trace=1, n_step=n_step, period=1, sampler="prioritized", **fields)


def _apex_small() -> ApexConfig:
    """For observations of a few numbers and episodes of some hundred steps."""
    return ApexConfig(
        replay=_transitions(
            max_size=50_000,
            min_size=1_000,
            samples_per_insert=8.0,  # else two actors leave the learner far behind
            error_buffer=4_000.0,
        ),
        hidden_sizes=(128, 128),
        importance_steps=20_000,
        target_period=100,
        optimizer="adam",
        learning_rate=1e-3,
        epsilon=1e-6,
    )


def _apex_minatar(name: str, game: str, n_step: int = 3, target_period: int = 500, head_size: int = 64) -> Experiment:
    """Convolution, discount and size of the replay as Young and Tian (2019) have them for DQN.

    They draw 32 rows for each frame, this draws 8, in batches of 64.
    """
    return Experiment(
        name=name,
        agent="apex_dqn",
        agent_config=ApexConfig(
            replay=_transitions(
                n_step=n_step,
                max_size=100_000,
                min_size=5_000,
                samples_per_insert=8.0,
                error_buffer=10_000.0,
            ),
            network="small_cnn",
            hidden_sizes=(128,),
            head_size=head_size,
            target_period=target_period,
            optimizer="adam",
            learning_rate=3e-4,
            epsilon=1e-6,
        ),
        environment=_minatar(game),
        learner=LearnerConfig(batch_size=64, samples_in_flight=256),
        evaluator=EvaluatorConfig(pause=20.0),
        run=RunConfig(environment_steps=2_000_000),
    )


def _impala_minatar(name: str, game: str) -> Experiment:
    """Network and discount as Young and Tian (2019) have them for their actor-critic.

    The learning rate is at 0 when the run ends: 80 steps an update. Without that it collapses where it learns fast.
    """
    return Experiment(
        name=name,
        agent="impala",
        agent_config=ImpalaConfig(
            replay=ReplaySpec(queue=True, trace=20, n_step=1, period=20, max_size=8),  # what waits grows old
            network="small_cnn",
            hidden_sizes=(128,),
            learning_rate=2e-3,
            annealing_steps=25_000,
            max_gradient_norm=0.5,
        ),
        environment=_minatar(game),
        topology=TopologyConfig(shards=1),
        actor=ActorConfig(items_in_flight=8),
        learner=LearnerConfig(batch_size=4, samples_in_flight=4, prefetch=1),
        evaluator=EvaluatorConfig(pause=20.0),
        run=RunConfig(environment_steps=2_000_000),
    )


def _minatar(game: str) -> EnvironmentConfig:
    """As in the paper: six actions, of which one in ten is the one before again, and a game that grows harder."""
    return EnvironmentConfig(name="minatar.gym:BaseEnv", library="gymnasium", per_actor=16, options={"game": game})


def _first_card() -> EnvironmentConfig:
    """Each step shows a card's suit, and pays 1/51 for naming the first one's, -1/51 for another: chance is -0.5."""
    return EnvironmentConfig(
        name="popgym:popgym-RepeatFirstEasy-v0",
        library="gymnasium",
        per_actor=8,
        options={"disable_env_checker": True},  # a twentieth of a step's time
    )


def _ppo_small(name: str, environment: str, config: PpoConfig, target: float) -> Experiment:
    """Little waits between actors and learner: the fewer updates old data is, the more of it passes the clip."""
    return Experiment(
        name=name,
        agent="ppo",
        agent_config=config,
        environment=EnvironmentConfig(name=environment, per_actor=8),
        topology=TopologyConfig(shards=1),
        actor=ActorConfig(items_in_flight=8),
        learner=LearnerConfig(batch_size=16, samples_in_flight=8, prefetch=1),
        run=RunConfig(target_return=target),
    )


def _ppo_replay(trace: int = 32) -> ReplaySpec:
    """A queue of one batch."""
    return ReplaySpec(queue=True, trace=trace, n_step=1, period=trace, max_size=16)


def _impala_small() -> ImpalaConfig:
    """For observations of a few numbers and episodes of some hundred steps."""
    return ImpalaConfig(
        # Values of a hundred would drown the policy's gradient in the layers that they share.
        baseline_cost=0.05,
        entropy_cost=0.02,
        learning_rate=1e-3,  # at twice that, one seed of four didn't learn to catch for minutes
    )


def _r2d2_small(name: str, environment: str, target: float) -> Experiment:
    """For observations of a few numbers: many small updates on short sequences, for it takes two thousand of them."""
    return Experiment(
        name=name,
        agent="r2d2",
        agent_config=R2d2Config(
            replay=ReplaySpec(
                burn_in=10,
                trace=20,
                n_step=5,
                period=10,
                sampler="prioritized",
                priority_exponent=0.9,
                max_size=20_000,
                min_size=200,
                samples_per_insert=4.0,
                error_buffer=800.0,
            ),
            hidden_sizes=(64,),
            lstm_size=32,
            discount=0.99,
            target_period=100,
            learning_rate=1e-3,
            epsilon=1e-6,
        ),
        environment=EnvironmentConfig(name=environment, per_actor=8),
        learner=LearnerConfig(batch_size=16, samples_in_flight=32),
        run=RunConfig(target_return=target),
    )
