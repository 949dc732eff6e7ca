# SPDX-License-Identifier: Apache-2.0
"""Unsupported decoder hparams are refused before tracing."""

# bazel: size=small
from __future__ import annotations

import pytest

from praxis.decoding import hparams


@pytest.mark.parametrize(
  ('wish', 'message'),
  [
    ({'emb_lookup_style': 'index'}, "lookup_style.*'index'.*embedding"),
    ({'precompute_kv_cache_prefix_ids': [3]}, r'\[3\].*begin the prompts'),
  ],
)
def test_what_would_have_no_effect_is_refused(wish, message):
  params = hparams.GreedyDecoderHParams(**wish)
  with pytest.raises(ValueError, match=message):
    hparams.check_supported(params)


def test_other_objects_are_refused():
  with pytest.raises(ValueError, match='must be a DecoderHParams, got dict'):
    hparams.check_supported({'seqlen': 4})


def test_usual_wishes_pass():
  params = hparams.SampleDecoderHParams(seqlen=4)
  assert hparams.check_supported(params) is params
