# SPDX-License-Identifier: Apache-2.0
"""Models of each family have the outputs of transformers."""

# bazel: env=PAX_CHECK_SHAPES=0
# bazel: size=medium
from __future__ import annotations

import numpy as np
import pytest

from pax.huggingface import model_folder
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
