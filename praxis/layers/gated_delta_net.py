# SPDX-License-Identifier: Apache-2.0
"""Gated DeltaNet: linear attention whose state is written by the delta rule.

Every step removes what the state has for its key before it adds the new value;
see ssm/gated_delta_rule.py.

Shapes: as in recurrent_mixer.py.

References: Gated Delta Networks, arXiv:2412.06464.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int
from typing_extensions import override

from praxis import base_layer, py_utils
from praxis.alias_names import module_getattr
from praxis.layers import recurrent_mixer
from praxis.layers.ssm import gated_delta_rule, matrix_states

__getattr__ = module_getattr(__name__)

_NORM_EPSILON = 1e-6
# Of a step without a learned change: softplus(x) = 0.01, times `exp(a_log)`.
_INITIAL_TIME_STEP = math.log(math.expm1(0.01))


class GatedDeltaNet(recurrent_mixer.RecurrentMixer):
  """Replaces self-attention of a Transformer; only for causal models.

  References: https://arxiv.org/abs/2412.06464
  """

  _head_scalars = {
    'a_log': base_layer.WeightInit.LogOfUniform(16.0),
    'dt_bias': base_layer.WeightInit.Constant(_INITIAL_TIME_STEP),
  }

  def setup(self) -> None:
    super().setup()
    self.create_child('strength', self._head_gate())

  @override
  def _steps(
    self,
    x: Float[Array, 'B T D'],
    pos: Int[Array, 'B T'],
    histories: Mapping[str, Float[Array, 'B C _ _']],
  ) -> matrix_states.Steps:
    query, key, value = self._convolved(x, pos, histories)
    scale = query.shape[-1] ** -0.5
    query, key = (
      matrix_states.repeat_heads(
        py_utils.l2_normalize(y, -1, _NORM_EPSILON), value.shape[2], axis=2
      )
      for y in (query, key)
    )
    return gated_delta_rule.Steps(
      query=query * scale,
      key=key,
      value=value,
      log_decay=self._log_decays(self._time_steps(x)),
      strength=jax.nn.sigmoid(self.strength(x).astype(jnp.float32)),
      is_start=pos <= 0,
    )

  @override
  def _output_norm(self, heads: tuple[int, int]) -> recurrent_mixer.LayerTpl:
    return self.norm_tpl.clone().set(dim=heads[1])

  @override
  def _gated_norm(
    self, encoded: Float[Array, 'B T N V'], gate: Float[Array, 'B T N V']
  ) -> Float[Array, 'B T N V']:
    return self.norm(encoded) * jax.nn.silu(gate)
