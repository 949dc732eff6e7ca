# SPDX-License-Identifier: Apache-2.0
"""Models of each family have the outputs of transformers."""

# bazel: env=PAX_CHECK_SHAPES=0
# bazel: size=medium
from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from pax.huggingface import families, model_folder
from tests.pax.huggingface import loaded_models, reference_models

_NAMES = tuple(reference_models.load())
_TOLERANCE = 1e-4


@pytest.mark.parametrize('name', _NAMES)
def test_logits_and_greedy_tokens_are_those_of_transformers(name, tmp_path):
  path, reference = reference_models.write_reference(tmp_path / 'model', name)
  model = loaded_models.LoadedModel(model_folder.ModelFolder.open(path))
  vocab_size = reference['config']['vocab_size']
  ids = reference_models.input_ids(vocab_size)
  targets = None
  if not model.is_decoder:
    targets = reference_models.decoder_ids(vocab_size)
  logits = np.asarray(model.logits(ids, targets))[:, -1]
  want = np.array(reference['logits'])
  np.testing.assert_allclose(logits, want, rtol=0, atol=_TOLERANCE)
  # A model that ignores its inputs has other logits by far.
  assert np.abs(want[0] - want[1]).max() > 1000 * _TOLERANCE
  np.testing.assert_array_equal(model.greedy(ids), reference['greedy'])


def test_names_of_older_files():
  config = reference_models.load()['qwen3_moe']['config']
  published = {**config, 'num_experts': config['num_local_experts']}
  del published['num_local_experts']
  assert families.read_model(published) == families.read_model(config)
  config = reference_models.load()['gemma3']['config']
  ropes = config['rope_parameters']
  published = {
    **config,
    'rope_theta': ropes['full_attention']['rope_theta'],
    'rope_scaling': {'rope_type': 'linear', 'factor': 8.0},
    'rope_local_base_freq': ropes['sliding_attention']['rope_theta'],
    'layer_types': None,
    'sliding_window_pattern': 2,
  }
  del published['rope_parameters']
  found = families.read_model(published)
  assert found.rope['factor'] == 8.0
  assert dataclasses.asdict(found) == dataclasses.asdict(
    families.read_model(config)
  )


@pytest.mark.parametrize(
  'name, settings, message',
  [
    (
      'mixtral',
      {'router_jitter_noise': 0.1},
      'jitter_noise .* must be 0',
    ),
    ('qwen3_moe', {'num_local_experts': 0}, 'num_local_experts .* at least 1'),
    (
      'gemma3',
      {'layer_types': ['chunked_attention']},
      'layer_types .* must be',
    ),
  ],
)
def test_settings_without_a_layer_are_refused(name, settings, message):
  config = {**reference_models.load()[name]['config'], **settings}
  with pytest.raises(ValueError, match=message):
    families.read_model(config)
