# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""What replicas computed is combined by weight, by sum, or by mean."""

from __future__ import annotations

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from pax import base_metrics
from pax.partitioning import mesh
from pax.steps import eval_steps, replicas
from praxis import base_layer, base_model
from praxis.pytypes import NestedMap

_FLAGS = base_layer.WeightHParamsCollection


def _on_two(fn, *args):
  """Returns fn of one row per replica, as the first replica has it."""
  devices = mesh.create_replica_mesh('batch', jax.devices()[:2])
  return jax.jit(
    jax.shard_map(
      lambda *rows: fn(*(row[0] for row in rows)),
      mesh=devices,
      in_specs=PartitionSpec('batch'),
      out_specs=PartitionSpec(),
      check_vma=False,
    )
  )(*map(jnp.asarray, args))


def test_scalars_are_weighted_and_a_weight_of_zero_counts_nothing():
  made = _on_two(
    lambda value, weight: replicas.mean_scalars(
      NestedMap(a=(value, weight), b=(value, 0 * weight)), 'batch'
    ),
    [1.0, 4.0],
    [1.0, 2.0],
  )
  assert jax.tree.map(float, made) == {'a': (3.0, 3.0), 'b': (0.0, 0.0)}


def test_summaries_are_means_images_are_the_first():
  made = _on_two(
    lambda x: replicas.mean_summaries(
      {'norm_scalar': x, 'rows_scalar': x[None], 'x_image': x[None]}, 'batch'
    ),
    [1.0, 4.0],
  )
  assert float(made['norm_scalar']) == 2.5
  np.testing.assert_array_equal(made['rows_scalar'], [2.5])
  np.testing.assert_array_equal(made['x_image'], [1.0])


@pytest.mark.parametrize(
  ('flag', 'wanted'),
  [(_FLAGS.REQUIRES_MEAN_SYNC, 12.5), (_FLAGS.REQUIRES_SUM_SYNC, 15.0)],
)
def test_variables_are_synced_as_flagged(flag, wanted):
  declared = {'v': base_layer.WeightHParams(shape=[], collections=[flag])}
  made = _on_two(
    lambda new: replicas.sync_non_trainables(
      {'v': new}, {'v': jnp.float32(10.0)}, declared, 'batch'
    ),
    [11.0, 14.0],
  )
  assert float(made['v']) == wanted


def test_one_program_combines_nothing():
  declared = {'v': base_layer.WeightHParams(shape=[])}
  made = replicas.sync_non_trainables(
    {'v': jnp.bfloat16(2.0)}, {'v': jnp.float32(1.0)}, declared, None
  )
  assert (float(made['v']), made['v'].dtype) == (2.0, jnp.float32)
  scalars = NestedMap(a=(1.0, 1.0))
  assert replicas.mean_scalars(scalars, None) is scalars


class _Decoder(base_model.BaseModel):
  """Its metrics are the values of its rows."""

  def decode(self, batch):
    pair = (batch.x[0], jnp.ones(()))
    return NestedMap(largest=pair, mean=pair), NestedMap(), {}


def test_decode_metrics_are_those_of_the_task_over_replicas():
  of = base_metrics.MaxMetrics.config(metric_keys=['largest'])
  both = base_metrics.CompositeMetrics.config(
    metrics_p=[base_metrics.MeanMetrics.config(), of]
  )
  task = types.SimpleNamespace(
    model=_Decoder(name='model'),
    decode=types.SimpleNamespace(apply_mutable_list=[base_layer.SUMMARIES]),
    metrics_aggregator=both.Instantiate(),
    summary_verbosity=2,
  )
  settings = types.SimpleNamespace(
    task=task,
    axis_name=base_layer.PMAP_PARALLEL_AXIS_NAME,
    activation_dtype=jnp.float32,
    var_weight_hparams={},
  )
  state = types.SimpleNamespace(step=0, mdl_vars={})
  made = _on_two(
    lambda x: (
      eval_steps.decode_step(
        settings, state, NestedMap(x=x), jax.random.key(0)
      ).weighted_scalars
    ),
    [[1.0], [4.0]],
  )
  assert jax.tree.map(float, made) == {
    'largest': (4.0, 2.0),
    'mean': (2.5, 2.0),
  }
