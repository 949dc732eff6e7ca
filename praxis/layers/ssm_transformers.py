# SPDX-License-Identifier: Apache-2.0
"""Transformer layers with a state space model in place of self attention."""

from __future__ import annotations

from collections.abc import Callable

from jaxtyping import Array, Float, Int, Num

from praxis import base_layer, pax_fiddle
from praxis.layers import activations, linears, ssm, transformers
from praxis.layers.transformers import norm_placement

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]
template_field = pax_fiddle.template_field


class SSMTransformer(transformers.Transformer):
  """A transformer layer that mixes positions by a state space model.

  Attention masks and positions are taken, as of a transformer layer, and have
  no effect: every position sees all before it, those of other segments, too.
  """

  # The state space model: what it is, how many states a channel has, how many
  # channels, the longest sequence, and more; see SSM.
  ssm_tpl: LayerTpl = template_field(ssm.SSM)
  ssm_nheads: int = 0
  ssm_dim: int = 0
  ssm_l_max: int = 0
  ssm_hippo_type: str = 'ss4d-1d-legs'
  ssm_step_size: float = 0.1
  # How many samples of each example are decoded.
  decode_num_samples: int = 4

  def setup(self) -> None:
    self._check_ssm_dim()
    super().setup()

  def decoding_sequence_length(self) -> int:
    """Returns the longest sequence that there can be."""
    return self.ssm_l_max

  def _check_ssm_dim(self) -> None:
    if self.ssm_dim != self.input_dims:
      raise ValueError(
        f'ssm_dim of {type(self).__name__} {self.name!r} must be input_dims='
        f'{self.input_dims}, got {self.ssm_dim}'
      )

  def _create_self_attention(self) -> None:
    model = self.ssm_tpl.clone().set(
      nheads=self.ssm_nheads,
      dim=self.ssm_dim,
      l_max=self.ssm_l_max,
      decode_num_samples=self.decode_num_samples,
      hippo_type=self.ssm_hippo_type,
      step_size=self.ssm_step_size,
    )
    self.create_child('ssm', model)

  def _self_attend(
    self, x: Float[Array, 'B T D'], mask: Array, pos: Array | None
  ) -> tuple[Float[Array, 'B T D'], None]:
    return self._mix(x, self.ssm), None

  def _self_attend_step(
    self,
    x: Float[Array, 'B *L D'],
    mask: Array,
    time_step: Int[Array, ''] | int,
    pos: Array | None,
  ) -> Float[Array, 'B *L D']:
    return self._mix(x, self.ssm.extend_step)

  def _mix(
    self, x: Float[Array, 'B *L D'], model: Callable[[Array], Array]
  ) -> Float[Array, 'B *L D']:
    """Returns what takes the place of attention; `model` runs the SSM."""
    return model(x)

  def _visit_decode_states(
    self, visit: Callable[[base_layer.BaseLayer], None]
  ) -> None:
    visit(self.ssm)


class SSMGated(SSMTransformer):
  """A gated state space layer: what a transformer's, on fewer channels, gates.

  With s the state space model on `ssm_dim` channels and W linear layers, the
  output is Wo(gelu(Wuco(x + Wuc(s(gelu(Wu(x)))))) * gelu(Wv(x))), norms left
  out.

  References: Pretraining Without Attention, https://arxiv.org/abs/2212.10544
  """

  # The linear layers.
  gss_fflayer_tpl: LayerTpl = template_field(linears.FeedForward)

  def _check_ssm_dim(self) -> None:
    """Any ssm_dim will do."""

  def _create_self_attention(self) -> None:
    super()._create_self_attention()
    size, wide, few = self.input_dims, self.input_dims * 3, self.ssm_dim
    gelu, identity = activations.GELU, activations.Identity
    for name, inputs, outputs, activation in (
      ('v', size, wide, gelu),
      ('u', size, few, gelu),
      ('uc', few, size, identity),
      ('uco', size, wide, gelu),
      ('o', wide, size, identity),
    ):
      layer = self.gss_fflayer_tpl.clone().set(
        input_dims=inputs,
        output_dims=outputs,
        activation_tpl=pax_fiddle.Config(activation),
      )
      self.create_child(f'gss_ffn_{name}', layer)

  def _create_feed_forward(self) -> None:
    """The gate takes its place."""

  def _mix(
    self, x: Float[Array, 'B *L D'], model: Callable[[Array], Array]
  ) -> Float[Array, 'B *L D']:
    return self.gss_ffn_uc(model(self.gss_ffn_u(x)))

  def _feed_forward(
    self,
    inputs: Float[Array, 'B T D'],
    outputs: Float[Array, 'B T D'],
    paddings: Num[Array, 'B T'] | None,
    segment_ids: Int[Array, 'B T'] | None,
  ) -> Float[Array, 'B T D']:
    return self._gate(inputs, outputs, paddings)

  def _feed_forward_step(
    self,
    inputs: Float[Array, 'B *L D'],
    outputs: Float[Array, 'B *L D'],
    time_step: Int[Array, ''] | int,
  ) -> Float[Array, 'B *L D']:
    return self._gate(inputs, outputs, None)

  def _gate(
    self,
    inputs: Float[Array, 'B *L D'],
    outputs: Float[Array, 'B *L D'],
    paddings: Num[Array, 'B *L'] | None,
  ) -> Float[Array, 'B *L D']:
    normed = norm_placement.apply_norm(
      self,
      self.norm_policy,
      norm_placement.NormPosition.INPUT,
      inputs,
      paddings,
    )
    gates = self.gss_ffn_v(normed)
    return self.gss_ffn_o(self.gss_ffn_uco(outputs) * gates)
