# SPDX-License-Identifier: Apache-2.0
"""Small mixtures of experts, and what all their experts compute, in numpy."""

from __future__ import annotations

import jax
import numpy as np

from praxis import pax_fiddle
from praxis.layers import normalizations, transformers

# Model and hidden dimension, and number of experts.
D, F, E = 4, 6, 3


def config(cls=transformers.TransformerFeedForwardMoe, **kwargs):
  fields = {
    'input_dims': D,
    'hidden_dims': F,
    'num_experts': E,
    'num_groups': 2,
    'unadjusted_expert_capacity_factor': 100.0,
    'ln_tpl': pax_fiddle.Config(normalizations.IdentityNorm),
  }
  return cls.config(**{**fields, **kwargs})


def experts(p, x, gated=False, limit=np.inf, offset=0.0):
  """Returns what every expert makes of every token, [B, T, E, D]."""
  hidden = np.einsum('btd,edf->btef', x, p['wi_0']) + p.get('bi_0', 0)
  if gated:
    gate = np.einsum('btd,edf->btef', x, p['wi_gate_0'])
    gate = np.minimum(gate + p.get('bi_gate_0', 0), limit)
    hidden = (np.clip(hidden, -limit, limit) + offset) * np.maximum(gate, 0)
  else:
    hidden = np.maximum(hidden, 0)
  return np.einsum('btef,efd->bted', hidden, p['wo_0']) + p.get('bo', 0)


def numbers(variables):
  return jax.tree.map(lambda x: np.asarray(x, np.float64), variables['params'])
