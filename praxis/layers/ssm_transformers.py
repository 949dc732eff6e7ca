# SPDX-License-Identifier: Apache-2.0
"""Transformer layers with a state space model instead of self-attention."""

from __future__ import annotations

from collections.abc import Callable

from jaxtyping import Array, Float, Int, Num

from praxis import base_layer, pax_fiddle
from praxis.alias_names import module_getattr
from praxis.layers import activations, linears, ssm, transformers
from praxis.layers.attentions import segments
from praxis.layers.transformers import norm_placement

__getattr__ = module_getattr(__name__)

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]
template_field = pax_fiddle.template_field


class SSMTransformer(transformers.Transformer):
  """A transformer layer that mixes positions by a state space model.

  Attention masks and positions are accepted and ignored: every position depends
  on all earlier ones, including those of other segments.
  """

  # The state space model, its number of states per channel, number of channels
  # and maximum sequence length, its HiPPO matrix and step size; see SSM.
  ssm_tpl: LayerTpl = template_field(ssm.SSM)
  ssm_nheads: int = 0
  ssm_dim: int = 0
  ssm_l_max: int = 0
  ssm_hippo_type: str = 'ss4d-1d-legs'
  ssm_step_size: float = 0.1
  # Number of samples that are decoded for each example.
  decode_num_samples: int = 4

  def setup(self) -> None:
    self._check_ssm_dim()
    super().setup()

  def decoding_sequence_length(self) -> int:
    """Returns the maximum sequence length."""
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
    self,
    x: Float[Array, 'B T D'],
    mask: Array | segments.SegmentMask,
    pos: Array | None,
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
    """Returns the mixed positions; `model` runs the SSM over them."""
    return model(x)

  def _visit_decode_states(
    self, visit: Callable[[base_layer.BaseLayer], None]
  ) -> None:
    visit(self.ssm)


class SSMGated(SSMTransformer):
  """A state space layer gated by a linear layer, on fewer channels inside.

  With s the state space model on `ssm_dim` channels and W linear layers, the
  output without norms is Wo(gelu(Wuco(x + Wuc(s(gelu(Wu(x)))))) * gelu(Wv(x))).

  References: Pretraining Without Attention, https://arxiv.org/abs/2212.10544
  """

  # The linear layers W.
  gss_fflayer_tpl: LayerTpl = template_field(linears.FeedForward)

  def _check_ssm_dim(self) -> None:
    """Accepts any ssm_dim."""

  def _create_self_attention(self) -> None:
    super()._create_self_attention()
    dims, wide_dims = self.input_dims, self.input_dims * 3
    gelu, identity = activations.GELU, activations.Identity
    for name, input_dims, output_dims, activation in (
      ('gss_ffn_v', dims, wide_dims, gelu),
      ('gss_ffn_u', dims, self.ssm_dim, gelu),
      ('gss_ffn_uc', self.ssm_dim, dims, identity),
      ('gss_ffn_uco', dims, wide_dims, gelu),
      ('gss_ffn_o', wide_dims, dims, identity),
    ):
      layer = self.gss_fflayer_tpl.clone().set(
        input_dims=input_dims,
        output_dims=output_dims,
        activation_tpl=pax_fiddle.Config(activation),
      )
      self.create_child(name, layer)

  def _create_feed_forward(self) -> None:
    """Creates nothing: the gate replaces the feed-forward."""

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
    paddings: Num[Array, ' B *L'] | None,
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
