# SPDX-License-Identifier: Apache-2.0
"""Weights are gathered for decoding, and decode the same tokens."""

# bazel: size=medium
from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from pax import partitioning, steps, tasks_lib
from pax.steps import gathered_weights
from praxis import optimizers, schedules
from praxis.layers import models, transformers
from praxis.nested_map import NestedMap

_B, _T = 4, 6


def _task(gathered_axes, fprop_dtype=jnp.float32):
  model_p = models.LanguageModel.config(
    name='lm',
    ici_mesh_shape=[2, 2],
    mesh_axis_names=['data', 'mdl'],
    fprop_dtype=fprop_dtype,
  )
  lm_p = model_p.lm_tpl
  lm_p.set(
    model_dims=16,
    vocab_size=64,
    stacked_transformer_tpl=transformers.StackedTransformer.config(
      num_layers=1, hidden_dims=16, num_heads=2
    ),
  )
  lm_p.softmax_tpl.weight_split_dims_mapping.wt = ['data', 'mdl']
  model_p.decoder_tpl.set(seqlen=_T, min_prefix_len=2, max_decode_steps=4)
  task_p = tasks_lib.SingleTask.config(name='task', model=model_p)
  task_p.decode.gathered_weight_axes = gathered_axes
  task_p.train.inputs_split_mapping = NestedMap(
    map_1d=('data',), map_2d=('data', None)
  )
  task_p.train.learner.set(
    loss_name='total_loss',
    optimizer=optimizers.Sgd.config(
      learning_rate=0.0, lr_schedule=schedules.Constant.config()
    ),
  )
  return task_p


def _batch():
  ids = jax.random.randint(jax.random.key(0), (_B, _T), 3, 64)
  return NestedMap(
    ids=ids,
    labels=ids,
    paddings=jnp.zeros((_B, _T)),
    weights=jnp.ones((_B, _T)),
  ).Transform(np.asarray)


def _partitioner(gathered_axes, **fields):
  return partitioning.partition_task(
    _task(gathered_axes, **fields),
    _batch().Transform(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype)),
    devices=jax.devices()[:4],
  )


@pytest.mark.parametrize('fprop_dtype', [jnp.float32, jnp.bfloat16])
def test_weights_are_replicated_over_the_axes(fprop_dtype):
  made = _partitioner(['data'], fprop_dtype=fprop_dtype)
  variables = made.initialize(jax.random.key(1)).mdl_vars
  settings = steps.StepSettings(
    task=made.task, var_weight_hparams=made.var_weight_hparams
  )
  gather = jax.jit(functools.partial(gathered_weights.gather_weights, settings))
  gathered = made.run_on_mesh(gather, variables)
  before, after = (
    x['params']['lm']['softmax']['logits_ffn']['linear']['w']
    for x in (variables, gathered)
  )
  assert before.sharding.spec == PartitionSpec('data', 'mdl')
  assert after.sharding.spec == PartitionSpec(None, 'mdl')
  assert after.dtype == fprop_dtype
  jax.tree.map(
    lambda x, y: np.testing.assert_array_equal(x.astype(y.dtype), y),
    variables,
    gathered,
  )


def test_decoded_tokens_are_the_same():
  outputs = []
  for axes in ([], ['data']):
    made = _partitioner(axes)
    state = made.initialize(jax.random.key(1)).to_eval_state()
    batch = made.put_batch(_batch())
    step = made.decode_step_for(batch)
    outputs.append(step(state, batch, jax.random.key(2)).per_example_out)
  sharded, gathered = outputs
  np.testing.assert_array_equal(sharded.output_ids, gathered.output_ids)
  np.testing.assert_allclose(sharded.logprobs, gathered.logprobs, rtol=1e-5)


def test_unknown_axes_are_refused():
  made = _partitioner(['rows'])
  state = made.initialize(jax.random.key(1)).to_eval_state()
  batch = made.put_batch(_batch())
  with pytest.raises(ValueError, match=r"axes of the mesh \['data', 'mdl'\]"):
    made.decode_step_for(batch)(state, batch, jax.random.key(2))
