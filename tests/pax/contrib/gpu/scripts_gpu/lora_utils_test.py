# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""LoRA on a tiny LLaMA: adapters, trained variables, checkpoints."""

from __future__ import annotations

import functools
import math

import jax
import numpy as np
import pytest

from praxis import py_utils
from tests.golden import experiment_texts
from tests.pax.contrib.gpu.scripts_gpu import tiny_llama
from tests.pax.tasks.lm import tiny_training

_RANK, _LAYERS, _D, _F = 3, 2, 16, 24
_ATTENTION = _RANK * (3 * 2 * _D + 2 * _D)
_MLP = _RANK * 3 * (_D + _F)
_HEADS, _KEYS = _D, 2 * 4


@functools.cache
def _num_params(**constants):
  cls = type(tiny_llama.made(**constants))
  return experiment_texts.resolve(cls).num_params


@pytest.mark.parametrize(
  ('constants', 'added'),
  [
    ({'LORA_TARGET_LAYERS': 'all'}, _ATTENTION + _MLP),
    ({'LORA_TARGET_LAYERS': 'attention'}, _ATTENTION),
    ({'LORA_TARGET_LAYERS': 'mlp'}, _MLP),
    ({'LORA_TARGET_LAYERS': 'mlp', 'USE_REPEATED_LAYER': True}, _MLP),
    (
      {
        'LORA_TARGET_LAYERS': 'attention',
        'USE_MQA': True,
        'NUM_KV_HEADS': 2,
      },
      # Queries, keys, values, and the way back.
      _RANK * (2 * (_D + _HEADS) + 2 * (_D + _KEYS)),
    ),
  ],
)
def test_adds_a_matrix_of_low_rank_to_each(constants, added):
  shape = {k: v for k, v in constants.items() if k != 'LORA_TARGET_LAYERS'}
  plain = _num_params(**shape)
  lora = _num_params(**constants, USE_LORA=True, LORA_RANK=_RANK)
  assert lora - plain == _LAYERS * added


def test_trains_only_what_it_adds():
  task_p = tiny_llama.made(
    NUM_LAYERS=1,
    MAX_STEPS=3,
    USE_LORA=True,
    LORA_RANK=_RANK,
    PACKED_INPUT=True,
  ).task()
  rows = np.ones(tiny_training.ROWS, np.float32)
  trained = tiny_training.train(task_p, eval_sample_weights=rows)
  assert trained.losses[2] < trained.losses[0]
  # B starts at 0: the model starts as its base.
  last = dict(py_utils.tree_paths(trained.last))
  for path, first in py_utils.tree_paths(trained.first):
    changed = bool(np.any(first != last[path]))
    assert changed == ('lora' in path), path
    assert not path.endswith('lora_b') or not np.any(first)


def test_optimizer_has_no_state_of_the_base():
  task = tiny_llama.made(USE_LORA=True, LORA_RANK=_RANK).task().Instantiate()
  declared = experiment_texts.resolve(
    type(tiny_llama.made(USE_LORA=True, LORA_RANK=_RANK))
  ).declared
  state = task.create_train_state_unpadded_shapes(declared)
  sizes = [math.prod(x.shape) for x in jax.tree.leaves(state.opt_states)]
  moments = 2 * _LAYERS * (_ATTENTION + _MLP)
  assert moments <= sum(sizes) < moments + 10


def test_checkpoint_need_not_have_it():
  there = 'somewhere'
  llama = tiny_llama.made(
    USE_LORA=True,
    CHECKPOINT_RESTORE_PATH=there,
    CHECKPOINT_IGNORE_RULES=['params/lm/softmax/.*'],
  )
  rules = llama.task().train.init_from_checkpoint_rules[there]
  assert rules.load_rules == [('(.*)', '{}')]
  assert rules.ignore_rules == ['params/lm/softmax/.*', '^.*lora.*$']
  provider = rules.input_specs_provider_p.Instantiate()
  shape = (tiny_training.ROWS * jax.local_device_count(), tiny_training.LENGTH)
  assert provider.get_input_specs().ids.shape == shape
  # Made twice, it is the same.
  again = llama.task().train.init_from_checkpoint_rules[there]
  assert again.ignore_rules == rules.ignore_rules
  plain = tiny_llama.made().task().train.Instantiate()
  assert not plain.init_from_checkpoint_rules
  learner = plain.learner.set(name='learner').Instantiate()
  assert not learner.bprop_variable_inclusion


def test_says_what_targets_there_are():
  with pytest.raises(
    ValueError, match="LORA_TARGET_LAYERS must be one of.*'ff"
  ):
    tiny_llama.made(LORA_TARGET_LAYERS='ffn').task()
