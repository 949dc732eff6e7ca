# SPDX-License-Identifier: Apache-2.0
# bazel: size=medium
"""WEIGHT_DECAY of models of Hugging Face: that of AdamW, for matrices."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from pax import jobs, partitioning
from pax.checkpoints import paths
from pax.huggingface import families
from pax.tasks.lm.params import huggingface, published_configs
from praxis.optimizers import regularization
from tests.pax.tasks.lm import tiny_training
from tests.testing import nightly

EXPERIMENTS = sorted(
  name
  for name, value in vars(huggingface).items()
  if isinstance(value, type) and hasattr(value, 'CONFIG')
)


def _weights(experiment: type, **constants: object) -> dict[str, float]:
  """Returns the decoupled weight decays of an experiment."""
  cls = type('Mine', (experiment,), {'WEIGHT_DECAY': 0.1, **constants})
  optimizer = cls().task().train.learner.optimizer
  assert optimizer.weight_decay == 0.0
  return optimizer.decoupled_weight_decay


# KimiK2 is a larger DeepSeekV3.
@pytest.mark.parametrize('name', nightly.marked(EXPERIMENTS, ['KimiK2']))
def test_vectors_and_biases_of_a_family_do_not_decay(name):
  experiment = getattr(huggingface, name)
  weights = _weights(experiment)
  config = experiment.CONFIG
  has_mtp = bool(config.get('num_nextn_predict_layers'))
  model = families.read_model(config, has_mtp=has_mtp)
  kinds = set()
  for layout in model.weights():
    # As nanoGPT, and biases of experts and positions as the Trainer of
    # transformers.
    decays = len(layout.tensor_shape) > 1 and 'bias' not in layout.tensor
    found = regularization.weight_of(weights, layout.variable)
    assert found == (0.1 if decays else 0.0), layout
    kinds.add(decays)
  assert kinds == {False, True}


def test_low_rank_updates_decay_without_their_magnitudes():
  weights = _weights(huggingface.Qwen3)
  path = 'params/lm/transformer/x_layers_0/self_attention/query'
  for name, want in (
    ('lora_a', 0.1),
    ('lora_b', 0.1),
    ('lora_magnitude_delta', 0.0),
    ('wi_0_lora_magnitude_delta', 0.0),
  ):
    assert regularization.weight_of(weights, f'{path}/{name}') == want


def test_no_decay_is_none():
  assert _weights(huggingface.Qwen3, WEIGHT_DECAY=0.0) is None


@pytest.mark.parametrize('is_repeated', [*nightly.cases(False), True])
def test_a_step_without_gradient_shows_the_decay(is_repeated):
  # A loss without weight has no gradient, so that a step is the decay alone.
  config = published_configs.GPT2 | dict(
    vocab_size=tiny_training.VOCAB, n_embd=16, n_layer=2, n_head=2
  )
  cls = type(
    'Mine',
    (huggingface.Gpt2,),
    dict(CONFIG=config, WEIGHT_DECAY=0.5, USE_REPEATED_LAYER=is_repeated),
  )
  zeros = np.zeros((tiny_training.ROWS, tiny_training.LENGTH), np.float32)
  trained = tiny_training.train(cls().task(), steps=2, weights=zeros)
  changes = {'kernel': 0, 'vector': 0}
  for path, before in jax.tree.leaves_with_path(trained.first):
    keys = [key.key for key in path]
    after = trained.last
    for key in keys:
      after = after[key]
    is_vector = keys[-1] in ('b', 'bias', 'scale')
    # The learning rate of the first step is 0, and then 0.01.
    factor = 1.0 if is_vector else 1.0 - 0.01 * 0.5
    np.testing.assert_allclose(after, factor * before, rtol=1e-6)
    changes['vector' if is_vector else 'kernel'] += 1
  assert min(changes.values()) > 5


class Small(huggingface.Qwen2):
  """A small model that decays."""

  CONFIG = published_configs.QWEN2 | dict(
    hidden_size=16,
    intermediate_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=1,
    vocab_size=300,
  )
  BATCH_SIZE = 2
  MAX_SEQ_LEN = 16
  SAMPLE_PROMPT = ''
  NUM_TRAIN_STEPS = 1
  WEIGHT_DECAY = 0.1


class Former(Small):
  """With the weight decay of earlier versions, of all variables."""

  def task(self):
    task_p = super().task()
    task_p.train.learner.optimizer.set(
      weight_decay=self.WEIGHT_DECAY, decoupled_weight_decay=None
    )
    return task_p


def test_states_have_the_leaves_of_the_decay_of_all_variables():
  spec = jax.eval_shape(tiny_training.batch)
  former, state = (
    partitioning.partition_task(
      experiment().task(), spec, devices=jax.devices()[:1]
    ).state_metadata
    for experiment in (Former, Small)
  )
  assert paths.flatten(former) == paths.flatten(state)


@pytest.mark.nightly
def test_checkpoints_of_the_decay_of_all_variables_continue(tmp_path):
  path = str(tmp_path / 'tokens.bin')
  np.random.default_rng(0).integers(0, 256, 400).astype('u2').tofile(path)
  first = type('First', (Former,), {'TRAIN_DATA': path})
  then = type('Then', (Small,), {'TRAIN_DATA': path, 'NUM_TRAIN_STEPS': 2})
  assert jobs.train_and_evaluate(first(), tmp_path / 'job') == 0
  assert jobs.train_and_evaluate(then(), tmp_path / 'job') == 0
  assert (tmp_path / 'job/checkpoints/checkpoint_00000002').exists()
