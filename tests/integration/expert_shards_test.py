# SPDX-License-Identifier: Apache-2.0
"""A language model is the same bit by bit on any number of expert shards.

All programs are for eight devices: XLA compiles one for a single device in
another way.
"""

# bazel: size=medium
from __future__ import annotations

import functools

import numpy as np
import pytest

from praxis import py_utils
from praxis.layers.transformer_models import stacks
from tests.integration import parallelism


def _task(shards):
  """Returns the task of a model whose experts alone are split."""
  task_p = parallelism.task(
    parallelism.Case(expert=1, model=(('GATING_FUNC', 'dropless_top2'),))
  )
  names = task_p.model.mesh_axis_names
  task_p.model.set(
    mesh_axis_names=[*names, 'copies', 'shards'],
    ici_mesh_shape=[*(1 for _ in names), 8 // shards, shards],
    dcn_mesh_shape=None,
  )
  for block_p in stacks.blocks(task_p.model.lm_tpl.stacked_transformer_tpl):
    weights = block_p.moe_layer_tpl.weight_split_dims_mapping
    weights.emh = weights.ehm = ['shards', None, None]
  return task_p


@functools.cache
def _stepped(shards):
  return parallelism.step_of(_task(shards), 8)


@pytest.mark.parametrize('shards', [2, 4, 8])
def test_loss_and_gradients_are_the_same_bits(shards):
  got, want = _stepped(shards), _stepped(1)
  assert got.loss == want.loss
  assert got.gradients.keys() == want.gradients.keys()
  for path, gradient in want.gradients.items():
    np.testing.assert_array_equal(got.gradients[path], gradient, err_msg=path)


def test_experts_are_split():
  stepped = _stepped(8)
  params = stepped.partitioner.state_metadata.mdl_vars['params']
  paths = {
    path: leaf.sharding.is_fully_replicated
    for path, leaf in py_utils.tree_paths(params)
  }
  split = {path.split('/')[-1] for path, whole in paths.items() if not whole}
  assert split == {'wi_0', 'wo_0'}
