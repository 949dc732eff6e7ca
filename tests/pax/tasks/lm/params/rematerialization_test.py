# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""CHECKPOINT_POLICY of models of Hugging Face that are not repeated."""

from __future__ import annotations

from typing import Any

import jax
import pytest

from pax.huggingface import families
from pax.tasks.lm.params import huggingface
from praxis.layers import checkpoint_policy
from praxis.pytypes import NestedMap
from tests.pax.huggingface import reference_models
from tests.pax.tasks.lm import tiny_training
from tests.testing import nightly

_EVERYTHING = checkpoint_policy.AutodiffCheckpointType.SAVE_EVERYTHING


def _pairs() -> NestedMap:
  """Returns a batch for encoder-decoders."""
  batch = tiny_training.batch()
  return NestedMap(
    src=NestedMap(ids=batch.ids, paddings=batch.paddings),
    tgt=batch,
  )


def _variables(experiment: type, name: str, batch: NestedMap) -> dict:
  """Returns the shapes of all variables."""
  config = reference_models.load()[name]['config']
  cls = type('Mine', (experiment,), {'CONFIG': config})
  model = cls().task().model.clone().set(ici_mesh_shape=None).Instantiate()
  variables = jax.eval_shape(model.init, jax.random.key(0), batch)
  pairs, _ = jax.tree_util.tree_flatten_with_path(variables)
  return {
    '/'.join(str(key.key) for key in path): leaf.shape for path, leaf in pairs
  }


def _saved(
  experiment: type, name: str, batch: NestedMap, **constants: Any
) -> int:
  """Returns the number of values that the backward pass reads."""
  config = reference_models.load()[name]['config']
  cls = type('Mine', (experiment,), {'CONFIG': config, **constants})
  model = cls().task().model.clone().set(ici_mesh_shape=None).Instantiate()
  variables = jax.eval_shape(model.init, jax.random.key(0), batch)

  def loss(variables: Any) -> jax.Array:
    metrics, _ = model.apply(variables, batch)
    return metrics.total_loss[0]

  _, backward = jax.eval_shape(lambda x: jax.vjp(loss, x), variables)
  return sum(x.size for x in jax.tree.leaves(backward))


@pytest.mark.parametrize(
  ('experiment', 'name'),
  [
    (huggingface.Qwen3, 'qwen3'),
    *nightly.cases((huggingface.Gemma4E2B, 'gemma4_e2b')),
    (huggingface.T5, 't5'),
  ],
)
def test_layers_that_are_not_repeated_are_rematerialized(experiment, name):
  batch = _pairs() if name == 't5' else tiny_training.batch()
  saved = _saved(experiment, name, batch)
  # Both include the weights.
  assert 4 * saved < _saved(
    experiment, name, batch, CHECKPOINT_POLICY=_EVERYTHING
  )


def test_variables_of_rematerialized_layers_are_those_of_files():
  # The layers of a T5 share the bias of the first.
  config = reference_models.load()['t5']['config']
  want = {
    x.variable: x.variable_shape for x in families.read_model(config).weights()
  }
  assert _variables(huggingface.T5, 't5', _pairs()) == want
