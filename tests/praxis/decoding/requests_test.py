# SPDX-License-Identifier: Apache-2.0
"""What decoding is asked for is looked at before anything is traced."""

# bazel: size=small
from __future__ import annotations

import pytest

from praxis import decoder_hparams
from praxis.decoding import requests


@pytest.mark.parametrize(
  ('wish', 'message'),
  [
    ({'emb_lookup_style': 'index'}, "lookup_style.*'index'.*embedding"),
    ({'precompute_kv_cache_prefix_ids': [3]}, r'\[3\].*begin the prompts'),
  ],
)
def test_what_would_have_no_effect_is_refused(wish, message):
  hparams = decoder_hparams.GreedyDecoderHParams(**wish)
  with pytest.raises(ValueError, match=message):
    requests.checked(hparams)


def test_other_objects_are_refused():
  with pytest.raises(ValueError, match='must be a DecoderHParams, got dict'):
    requests.checked({'seqlen': 4})


def test_usual_wishes_pass():
  hparams = decoder_hparams.SampleDecoderHParams(seqlen=4)
  assert requests.checked(hparams) is hparams
