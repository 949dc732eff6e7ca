# SPDX-License-Identifier: Apache-2.0
"""A mixture of experts whose branches have norms of their own (Gemma 4).

Shapes: B batch, T time, G groups, S tokens per group, E experts, M model
dimension.
"""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Num

from praxis import base_layer
from praxis.layers.moe import gating
from praxis.layers.transformers import feed_forward_moe, norm_placement

_NormPosition = norm_placement.NormPosition


class BranchNormFeedForwardMoe(feed_forward_moe.TransformerFeedForwardMoe):
  """Adds the normalized outputs of shared and of chosen experts.

  With an input x, shared experts f, chosen experts g, and norms N that each
  have a scale:

      f_out = N(f(N_in(x)))
      g_out = N(g(N(x); router(N(x) / √M)))
      outputs = x + N_out(f_out + g_out)

  N_in and N_out are those of the policy, which is 'primer_hybrid'. The gates of
  an expert are multiplied by a variable.
  """

  def setup(self) -> None:
    super().setup()
    for name in ('router', 'expert', 'expert_output', 'shared_output'):
      norm = self.ln_tpl.clone().set(dim=self.input_dims)
      self.create_child(f'{name}_layer_norm', norm)
    self.create_variable(
      'expert_scale',
      base_layer.WeightHParams(
        shape=[self.num_experts],
        init=base_layer.WeightInit.Constant(1.0),
        mesh_shape=self.mesh_shape,
      ),
    )

  def _transform(
    self,
    inputs: Float[Array, 'B T M'],
    paddings: Num[Array, 'B T'] | None,
    segment_ids: Int[Array, 'B T'] | None,
  ) -> Float[Array, 'B T M']:
    normed = super()._norm(_NormPosition.INPUT, inputs, paddings)
    shared = self.shared_experts(normed, paddings)
    mixed = self._mix_experts(
      self.expert_layer_norm(inputs),
      self.router_layer_norm(inputs) * self.input_dims**-0.5,
      paddings,
      segment_ids,
    )
    return self.shared_output_layer_norm(
      shared
    ) + self.expert_output_layer_norm(mixed)

  def _norm(
    self,
    position: _NormPosition,
    x: Float[Array, 'B T M'],
    paddings: Num[Array, 'B T'] | None,
  ) -> Float[Array, 'B T M']:
    if position is _NormPosition.INPUT:
      # Each branch normalizes its inputs.
      return x
    return super()._norm(position, x, paddings)

  def _apply_dropless_experts(
    self, tokens: Float[Array, 'G S M'], assignment: gating.ExpertAssignment
  ) -> Float[Array, 'G S M']:
    scale = self.theta.expert_scale.astype(jnp.float32)
    gates = [
      gate * jnp.einsum('gse,e->gs', mask, scale)
      for mask, gate in zip(assignment.masks, assignment.gates, strict=True)
    ]
    return super()._apply_dropless_experts(
      tokens, dataclasses.replace(assignment, gates=gates)
    )

  def _check_moe_fields(self) -> None:
    super()._check_moe_fields()
    for name, want in (
      ('gating_func', 'dropless'),
      ('norm_policy', 'primer_hybrid'),
      ('has_bias', False),
    ):
      if (got := getattr(self, name)) != want:
        raise ValueError(
          f'{name} of {type(self).__name__} must be {want!r}, got {got!r}; use'
          ' TransformerFeedForwardMoe'
        )
    if self.shared_experts_tpl is None:
      raise ValueError(
        f'shared_experts_tpl of {type(self).__name__} must not be None; use'
        ' TransformerFeedForwardMoe'
      )
