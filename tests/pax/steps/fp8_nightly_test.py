# SPDX-License-Identifier: Apache-2.0
# bazel: size=large
# bazel: tags=nightly
"""fp8 training on meshes, in pipelines, and with accumulated gradients.

Sums in another order differ by the rounding of float32. fp8 amplifies this
where a value is close to the middle of two fp8 numbers, which are up to 1/8
apart; few are.
"""

from __future__ import annotations

import functools
import itertools
import operator

import jax
import numpy as np
import pytest

from praxis import optimizers, pax_fiddle
from praxis.layers.checkpoint_policy import AutodiffCheckpointType
from tests.pax.steps import fp8_training

_SCALINGS = ('delayed', 'current')
_SPREADS = {
  'data': dict(num_devices=2, ICI_MESH_SHAPE=(2, 1, 1)),
  'fsdp_tensor': dict(num_devices=4, ICI_MESH_SHAPE=(1, 2, 2)),
  'replicas': dict(num_devices=2, ICI_MESH_SHAPE=None),
}
_PIPELINE = dict(
  pipelined=True,
  num_devices=2,
  ICI_MESH_SHAPE=(2, 1, 1, 1),
  DCN_MESH_SHAPE=(1, 1, 1, 1),
)


@functools.cache
def _alone(scaling):
  return fp8_training.train(scaling)


@pytest.mark.parametrize('scaling', _SCALINGS)
def test_losses_are_close_to_those_without_fp8(scaling):
  want = _alone(None).losses
  losses = _alone(scaling).losses
  # Three digits of mantissa.
  np.testing.assert_allclose(losses, want, rtol=0.02)
  assert losses != want


@pytest.mark.parametrize('spread', _SPREADS)
@pytest.mark.parametrize('scaling', _SCALINGS)
def test_losses_are_those_of_one_device(scaling, spread):
  want = _alone(scaling)
  training = fp8_training.train(scaling, **_SPREADS[spread])
  np.testing.assert_allclose(training.losses, want.losses, rtol=1e-5)
  _check_einsum_variables(training, want)


@pytest.mark.parametrize('scaling', _SCALINGS)
def test_pipelines(scaling):
  training = fp8_training.train(scaling, **_PIPELINE)
  want = fp8_training.train(None, **_PIPELINE)
  np.testing.assert_allclose(training.losses, want.losses, rtol=0.02)
  before, after = (s.mdl_vars['params'] for s in training.states[-2:])
  einsums = fp8_training.einsum_variables(after)
  assert len(einsums) == (4 if scaling == 'delayed' else 0)
  for path, op in einsums.items():
    layer = functools.reduce(operator.getitem, path.split('/')[:-1], before)
    weights = np.abs(np.reshape(layer['w'], (2, -1)))
    # The largest of all microbatches, not their sum.
    history = np.reshape(op['kernel_amax_history'], (2, -1))
    np.testing.assert_allclose(history[:, 0], weights.max(1), rtol=1e-6)
    assert np.all((history > 0).sum(1) == 3)


@pytest.mark.parametrize('scaling', _SCALINGS)
def test_rematerialization_changes_nothing(scaling):
  saved = fp8_training.train(
    scaling, CHECKPOINT_POLICY=AutodiffCheckpointType.SAVE_EVERYTHING
  )
  want = _alone(scaling)
  np.testing.assert_allclose(saved.losses, want.losses, rtol=1e-6)
  _check_einsum_variables(saved, want)


def test_scales_follow_every_batch_while_gradients_accumulate():
  optimizer = pax_fiddle.Config(
    optimizers.ShardedStaticAccumulator,
    optimizer_tpl=fp8_training.adam(),
    num_sub_batches=2,
  )
  states = fp8_training.train('delayed', optimizer=optimizer).states
  weights = [
    s.mdl_vars['params']['lm']['softmax']['logits_ffn']['linear']['w']
    for s in states
  ]
  changes = [np.any(a != b) for a, b in itertools.pairwise(weights)]
  assert changes == [False, True, False]
  for step, state in enumerate(states):
    for op in fp8_training.einsum_variables(state.mdl_vars).values():
      for name in ('input_amax_history', 'output_grad_amax_history'):
        assert np.all((op[name] > 0).sum(-1) == step)


def _check_einsum_variables(training, want):
  jax.tree.map(
    functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-7),
    *(
      fp8_training.einsum_variables(t.states[-1].mdl_vars)
      for t in (training, want)
    ),
  )
