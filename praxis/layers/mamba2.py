# SPDX-License-Identifier: Apache-2.0
"""Mamba-2: a selective state space model with a scalar decay for each head.

Input and output matrices, and the sizes of time steps, depend on the input; see
ssm/state_space_dual.py. In terms of attention the output matrices are queries,
the input matrices keys, of the dimension of the state, and the inputs values.

Shapes: as in recurrent_mixer.py.

References: Transformers are SSMs, arXiv:2405.21060.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int
from typing_extensions import override

from praxis import base_layer, pax_fiddle
from praxis.alias_names import module_getattr
from praxis.layers import attentions, normalizations, recurrent_mixer
from praxis.layers.ssm import matrix_states, state_space_dual

__getattr__ = module_getattr(__name__)


class Mamba2(recurrent_mixer.RecurrentMixer):
  """Replaces self-attention of a Transformer; only for causal models.

  References: https://arxiv.org/abs/2405.21060
  """

  # Heads of input and output matrices, called groups, and the dimension of the
  # state.
  num_key_heads: int | None = 1
  key_head_dim: int | None = 128
  conv_tpl: recurrent_mixer.LayerTpl = pax_fiddle.template_field(
    attentions.BiasedCausalDepthwiseConv1D
  )
  chunk_size: int = 256
  # The norm of gated outputs, of the heads of each group together.
  norm_tpl: recurrent_mixer.LayerTpl = pax_fiddle.template_field(
    normalizations.GroupedRmsNorm
  )
  # Bounds of the size of a time step.
  time_step_limits: tuple[float, float] = (0.0, math.inf)

  _head_scalars = {
    'a_log': base_layer.WeightInit.LogOfUniform(16.0),
    'dt_bias': base_layer.WeightInit.InverseSoftplusOfLogUniform(0.1),
    # The factor of inputs that are added to outputs.
    'skip': base_layer.WeightInit.Constant(1.0),
  }

  @override
  def _steps(
    self,
    x: Float[Array, 'B T D'],
    pos: Int[Array, 'B T'],
    histories: Mapping[str, Float[Array, 'B C _ _']],
  ) -> matrix_states.Steps:
    query, key, value = self._convolved(x, pos, histories)
    time_steps = jnp.clip(self._time_steps(x), *self.time_step_limits)
    skip = self.get_var('skip').astype(jnp.float32)
    return state_space_dual.Steps(
      query=query,
      key=key,
      value=value * time_steps[..., jnp.newaxis],
      log_decay=self._log_decays(time_steps),
      direct=value * skip[:, jnp.newaxis],
      is_start=pos <= 0,
    )

  @override
  def _output_norm(self, heads: tuple[int, int]) -> recurrent_mixer.LayerTpl:
    num_groups, _ = self._heads()['key']
    return self.norm_tpl.clone().set(
      dim=math.prod(heads), num_groups=num_groups
    )

  @override
  def _gated_norm(
    self, encoded: Float[Array, 'B T N V'], gate: Float[Array, 'B T N V']
  ) -> Float[Array, 'B T N V']:
    gated = encoded * jax.nn.silu(gate)
    merged = gated.reshape(*gated.shape[:2], -1)
    return self.norm(merged).reshape(gated.shape)
