# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""A mixture and a feed-forward layer with norms of their own, by numpy."""

from __future__ import annotations

import numpy as np
import pytest

from praxis import pax_fiddle
from praxis.layers import normalizations, transformers
from tests.praxis.layers import running
from tests.praxis.layers.moe import mixtures
from tests.testing import numpy_layers

_NORM = pax_fiddle.Config(normalizations.RmsNorm, direct_scale=True)
_SHARED = pax_fiddle.Config(
  transformers.TransformerFeedForward, hidden_dims=5, has_bias=False
)


def _config(**fields):
  defaults = {
    'gating_func': 'dropless',
    'experts_per_token': 2,
    'norm_policy': 'primer_hybrid',
    'shared_experts_tpl': _SHARED,
    'ln_tpl': _NORM,
  }
  return mixtures.config(
    transformers.BranchNormFeedForwardMoe, **{**defaults, **fields}
  )


def test_branches_are_normalized_and_gates_have_a_scale():
  x = running.normal(2, 5, mixtures.D)
  layer, variables = running.build(_config(), x)
  p = mixtures.numbers(variables)
  norm = lambda name, y: numpy_layers.rms_norm(
    y, p[f'{name}layer_norm']['scale']
  )
  inputs = np.asarray(x, np.float64)
  routed = norm('router_', inputs) * mixtures.D**-0.5
  probs = numpy_layers.softmax(routed @ p['gate'])
  chosen = probs >= np.sort(probs, -1)[..., -2:-1]
  gates = probs * chosen / np.sum(probs * chosen, -1, keepdims=True)
  of_experts = mixtures.experts(p, norm('expert_', inputs))
  mixed = np.einsum('bted,bte->btd', of_experts, gates * p['expert_scale'])
  weights = [
    p['shared_experts'][f'ffn_layer{i}']['linear']['w'] for i in (1, 2)
  ]
  hidden = np.maximum(norm('pre_', inputs) @ weights[0], 0)
  branches = norm('shared_output_', hidden @ weights[1])
  branches += norm('expert_output_', mixed)
  want = inputs + norm('post_', branches)
  np.testing.assert_allclose(running.run(layer, variables, x), want, atol=1e-5)


@pytest.mark.parametrize(
  'fields, message',
  [
    ({'gating_func': 'top2'}, "gating_func .* must be 'dropless', got 'top2'"),
    ({'norm_policy': 'pre'}, "norm_policy .* must be 'primer_hybrid'"),
    ({'has_bias': True}, 'has_bias .* must be False'),
    ({'shared_experts_tpl': None}, 'shared_experts_tpl .* must not be None'),
  ],
)
def test_other_mixtures_are_refused(fields, message):
  with pytest.raises(ValueError, match=message):
    running.build(_config(**fields), running.normal(2, 5, mixtures.D))
