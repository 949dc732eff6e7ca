# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Constants of experiments outside of their domains."""

from __future__ import annotations

import math

import pytest

from pax import constant_domains
from praxis import value_domains
from praxis.layers import models


class Base:
  NUM_HEADS = None
  BATCH_SIZE = 8
  PERCORE_BATCH_SIZE = 1
  ICI_MESH_SHAPE = [1, 2, 1]
  LEARNING_RATE = 1e-3
  # Another meaning than in Pax.
  MAX_STEPS = 'all'
  MODEL_DIMS: int
  GRPO_LOSS_MEAN = 'tokens'
  GRPO_RATIO_LEVEL = 'token'
  GRPO_BETA = 0.0
  GRPO_CLIP_LOW = 0.2
  ROLLOUT_TEMPERATURE = 1.0
  ROLLOUT_TOP_K = 0
  ROLLOUT_TOP_P = 1.0


@pytest.mark.parametrize(
  ('name', 'value'),
  [
    ('BATCH_SIZE', 0),
    ('BATCH_SIZE', -4),
    ('BATCH_SIZE', None),
    ('BATCH_SIZE', '8'),
    ('PERCORE_BATCH_SIZE', 0),
    ('NUM_HEADS', 0),
    ('ICI_MESH_SHAPE', [1, 0, 1]),
    ('ICI_MESH_SHAPE', [1, -1, 1]),
    ('ICI_MESH_SHAPE', 4),
    ('LEARNING_RATE', math.nan),
    ('GRPO_LOSS_MEAN', 'token'),
    ('GRPO_RATIO_LEVEL', 'tokens'),
    ('GRPO_BETA', -0.1),
    ('GRPO_CLIP_LOW', 1.2),
    ('ROLLOUT_TEMPERATURE', 0),
    ('ROLLOUT_TOP_K', -1),
    ('ROLLOUT_TOP_K', 0.5),
    ('ROLLOUT_TOP_P', 0.0),
    ('ROLLOUT_TOP_P', 1.1),
  ],
)
def test_invalid(name, value):
  experiment = type('Mine', (Base,), {name: value})()
  with pytest.raises(ValueError, match=rf'^{name} of Mine must be .*, got '):
    constant_domains.check(experiment)


@pytest.mark.parametrize(
  'constants',
  [
    {},
    {'PERCORE_BATCH_SIZE': 0.5, 'NUM_HEADS': 4, 'BATCH_SIZE': 1},
    {'ICI_MESH_SHAPE': None, 'LEARNING_RATE': -1.0},
    {'MAX_STEPS': 'none'},
    {'GRPO_LOSS_MEAN': 'samples', 'GRPO_RATIO_LEVEL': 'sequence'},
    {'GRPO_LOSS_MEAN': 'max_length', 'ROLLOUT_TOP_K': 20, 'ROLLOUT_TOP_P': 1},
    {'BATCH_SIZE': property(lambda self: 1 // 0)},
  ],
)
def test_valid(constants):
  constant_domains.check(type('Mine', (Base,), constants)())


def test_domains_of_rewards_are_those_of_the_model():
  fields = dict(
    (field.name, domain)
    for field, domain in value_domains.domains_of(models.LanguageModelGRPO)
  )
  for name, field in (
    ('GRPO_LOSS_MEAN', 'loss_mean'),
    ('GRPO_RATIO_LEVEL', 'ratio_level'),
    ('GRPO_BETA', 'beta'),
    ('GRPO_CLIP_LOW', 'clip_ratio_low'),
    ('GRPO_CLIP_HIGH', 'clip_ratio_high'),
    ('ROLLOUT_TEMPERATURE', 'temperature'),
  ):
    assert constant_domains.DOMAINS[name].text == fields[field].text


def test_the_message_proposes_the_value_of_the_base():
  experiment = type('Mine', (Base,), {'BATCH_SIZE': 0})()
  with pytest.raises(ValueError, match='got 0; e.g. --set BATCH_SIZE=8$'):
    constant_domains.check(experiment)
  # The first class with a value says what the constant is.
  first = type('Mine', (Base,), {'MODEL_DIMS': 16})
  with pytest.raises(ValueError, match='got 0; e.g. --set MODEL_DIMS=16$'):
    constant_domains.check(type('Mine', (first,), {'MODEL_DIMS': 0})())
