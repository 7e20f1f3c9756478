"""The tables of one shard."""

import reverb
import tensorflow as tf

from replay.canary import CANARY, make_canary_table
from replay.layout import Layout
from replay.metrics import METRICS, make_metrics_table
from replay.plan import ShardPlan, memory_of, plan_shard
from replay.variables import VARIABLES, make_variables_tables

__all__ = ["CANARY", "METRICS", "TRAJECTORIES", "VARIABLES", "ShardPlan", "make_tables", "memory_of", "plan_shard"]

TRAJECTORIES = "trajectories"  # the table's name


def to_tensor_specs(layout: Layout) -> dict[str, tf.TensorSpec]:
    """The signature of the trajectories table."""
    return {
        name: tf.TensorSpec(shape, tf.as_dtype(dtype), name=name) for name, (shape, dtype) in layout.signature.items()
    }


def make_tables(plan: ShardPlan, layout: Layout) -> list[reverb.Table]:
    """All tables of one shard: trajectories, those that weights and metrics travel through, and the probe's."""
    return [make_trajectories_table(plan, layout), *make_variables_tables(), make_metrics_table(), make_canary_table()]


def make_trajectories_table(plan: ShardPlan, layout: Layout) -> reverb.Table:
    """The table of a shard's experience."""
    signature = to_tensor_specs(layout)
    if plan.queue:
        return reverb.Table.queue(TRAJECTORIES, plan.max_size, signature=signature)
    sampler = reverb.selectors.Prioritized(plan.priority_exponent) if plan.prioritized else reverb.selectors.Uniform()
    removers = {
        "fifo": reverb.selectors.Fifo,
        "lifo": reverb.selectors.Lifo,
        "min_heap": reverb.selectors.MinHeap,
    }
    return reverb.Table(
        name=TRAJECTORIES,
        sampler=sampler,
        remover=removers[plan.remover](),
        max_size=plan.max_size,
        rate_limiter=_limiter(plan),
        signature=signature,
    )


def _limiter(plan: ShardPlan) -> reverb.rate_limiters.RateLimiter:
    if not plan.samples_per_insert:
        return reverb.rate_limiters.MinSize(plan.min_size)
    return reverb.rate_limiters.SampleToInsertRatio(plan.samples_per_insert, plan.min_size, plan.error_buffer)
