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
  'pipeline': dict(num_devices=2, ICI_MESH_SHAPE=(2, 1, 1, 1), pipelined=True),
}


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
  options = dict(_SPREADS[spread])
  if options.get('pipelined'):
    options['DCN_MESH_SHAPE'] = (1, 1, 1, 1)
  want, training = _alone(scaling), fp8_training.train(scaling, **options)
  print(scaling, spread, want.losses, training.losses)
  np.testing.assert_allclose(training.losses, want.losses, rtol=1e-4)
  if scaling == 'current':
    return
  einsums = fp8_training.einsum_variables(training.states[-1].mdl_vars)
  histories = {
    path: op['kernel_amax_history'].reshape(2, -1)[:, 0]
    for path, op in einsums.items()
  }
  for path, op in fp8_training.einsum_variables(
    want.states[-1].mdl_vars
  ).items():
    (name,) = [n for n in histories if n.endswith(path[-30:])] or [path]
    np.testing.assert_allclose(
      histories[name], op['kernel_amax_history'][:, 0], rtol=1e-2
    )


@pytest.mark.parametrize('scaling', _SCALINGS)
def test_rematerialization_changes_nothing(scaling):
  saved = fp8_training.train(
    scaling, CHECKPOINT_POLICY=AutodiffCheckpointType.SAVE_EVERYTHING
  )
  want = _alone(scaling)
  np.testing.assert_allclose(saved.losses, want.losses, rtol=1e-6)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5),
    fp8_training.einsum_variables(saved.states[-1].mdl_vars),
    fp8_training.einsum_variables(want.states[-1].mdl_vars),
  )


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
