# SPDX-License-Identifier: Apache-2.0
"""Transformer layers one after the other, each with variables of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from praxis import base_layer, pax_fiddle
from praxis.layers import checkpoint_policy as checkpoint_policy_lib
from praxis.layers import stochastics
from praxis.layers.transformers import masks, moe, stack, transformer

AutodiffCheckpointType = checkpoint_policy_lib.AutodiffCheckpointType
LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]
template_field = pax_fiddle.template_field
# How many keys a query sees to its left and right; None: all.
_Window = tuple[int, int] | None


class StackedTransformer(stack.TransformerStack):
  """num_layers transformer layers, `x_layers`, and the masks they share."""

  # Whether layers also attend to another sequence.
  use_cross_attention: bool = False
  # Whether later positions are hidden.
  mask_self_attention: bool = False
  num_layers: int = 0
  # Sizes: of inputs and outputs, within feed-forward blocks, and the heads.
  model_dims: int = 0
  hidden_dims: int = 0
  num_heads: int = 0
  dim_per_head: int | None = None
  # Of all dropouts, unless one of the next three says otherwise.
  dropout_prob: float = 0.0
  atten_dropout_prob: float | None = None
  residual_dropout_prob: float | None = None
  relu_dropout_prob: float | None = None
  # Probability that an example skips a block of the last layer but one in
  # depth; it grows linearly from 0 in the first layer.
  residual_droppath_prob: float = 0.0
  # Dropout of the inputs of the stack.
  input_dropout_prob: float = 0.0
  # How experts are chosen, and how many tokens they take unless moe_layer_tpl
  # says otherwise; see moe.py.
  gating_func: str = 'top2'
  unadjusted_expert_capacity_factor: float = 2.0
  # The layer; or k of them, each for num_layers / k layers in a row.
  transformer_layer_params_tpl: LayerTpl | Sequence[LayerTpl] = template_field(
    transformer.Transformer
  )
  # Whether sequences hold several segments.
  packed_input: bool = False
  # Whether the segment mask hides padding, too.
  fold_padding_with_segment_mask: bool = False
  # The feed-forward block of the layers listed in moe_layers.
  moe_layer_tpl: LayerTpl | None = template_field(moe.TransformerFeedForwardMoe)
  num_experts: int = 0
  num_groups: int = 1
  min_group_size: int | None = None
  moe_layers: Sequence[int] | None = ()
  # N-grammers after the attention of each layer; None in the list for none.
  ngrammer_tpls: Sequence[LayerTpl | None] | None = template_field(None)
  # Whether the backward pass computes layers again, and what it finds.
  remat: bool = False
  checkpoint_policy: AutodiffCheckpointType = (
    AutodiffCheckpointType.SAVE_DOT_EXCEPT_LOGITS_FFN1
  )
  # The attention window of all layers, or a sequence of one for each.
  local_window_size: _Window | Sequence[_Window] = None

  def setup(self) -> None:
    self._check_fields()
    layers = [self._layer(i) for i in range(self.num_layers)]
    self.create_children('x_layers', layers)
    if self.input_dropout_prob > 0.0:
      self.create_child(
        'input_dropout',
        pax_fiddle.Config(
          stochastics.Dropout, keep_prob=1.0 - self.input_dropout_prob
        ),
      )

  def _run(
    self, inputs: Float[Array, 'B T D'], side: stack.SideInputs
  ) -> Float[Array, 'B T D']:
    if self.packed_input and side.segment_mask is None:
      raise ValueError(
        'segment_mask must be given with packed_input=True, got None; build it '
        'with attentions.segment_mask or causal_segment_mask'
      )
    mask, cross_mask = masks.compute_attention_masks_for_fprop(
      inputs,
      side.paddings,
      self.mask_self_attention,
      side.segment_mask,
      side.cross_inputs if self.use_cross_attention else None,
      side.cross_paddings,
      side.cross_segment_mask,
      self.fold_padding_with_segment_mask,
    )
    outputs = inputs
    if self.input_dropout_prob > 0.0:
      outputs = self.input_dropout(outputs)
    run = self._run_layer()
    of_all = side.paddings, mask, side.cross_inputs, cross_mask
    for layer in self.x_layers:
      outputs = run(layer, outputs, *of_all, side.segment_pos)
    return outputs

  def _run_step(
    self, inputs: Float[Array, 'B *L D'], step: stack.StepInputs
  ) -> Float[Array, 'B *L D']:
    seq_len = self.x_layers[0].decoding_sequence_length()
    mask, cross_mask = masks.compute_attention_masks_for_extend_step(
      step.time_step,
      seq_len,
      cross_paddings=step.cross_paddings if self.use_cross_attention else None,
      cross_segment_mask=step.cross_segment_mask,
    )
    if step.atten_mask is not None:
      mask = step.atten_mask
    elif step.segment_pos is not None or inputs.ndim == 3:
      mask = _mask_of_steps(inputs, step.time_step, seq_len, step.segment_pos)
    outputs = inputs
    for layer in self.x_layers:
      outputs = layer.extend_step(
        outputs,
        time_step=step.time_step,
        segment_pos=step.segment_pos,
        attention_mask=mask,
        cross_attention_mask=cross_mask,
      )
    return outputs

  def _each_decode_state(
    self, visit: Callable[[base_layer.BaseLayer], None]
  ) -> None:
    for layer in self.x_layers:
      visit(layer)

  def _run_layer(self) -> Callable[..., Array]:
    """Returns a function of a layer and its inputs, rematerialised if asked."""
    if not self.remat or self.do_eval:
      return _layer_output
    policy = checkpoint_policy_lib.custom_policy(self.checkpoint_policy)
    return nn.remat(_layer_output, policy=policy)

  def _layer(self, i: int) -> LayerTpl:
    layer = (
      self._template(i)
      .clone()
      .set(
        use_cross_attention=self.use_cross_attention,
        dim_per_head=self.dim_per_head,
        input_dims=self.model_dims,
        hidden_dims=self.hidden_dims,
        packed_input=self.packed_input,
        atten_dropout_prob=self._dropout(self.atten_dropout_prob),
        residual_dropout_prob=self._dropout(self.residual_dropout_prob),
        relu_dropout_prob=self._dropout(self.relu_dropout_prob),
      )
    )
    if self.num_heads:
      layer.num_heads = self.num_heads
    if self.residual_droppath_prob > 0.0:
      layer.residual_droppath_prob = (
        self.residual_droppath_prob * i / max(1, self.num_layers)
      )
    if self.local_window_size is not None:
      layer.tr_atten_tpl.local_window_size = self._window(i)
    if self.ngrammer_tpls is not None and self.ngrammer_tpls[i] is not None:
      layer.ngrammer_tpl = self.ngrammer_tpls[i]
    if i in (self.moe_layers or ()):
      experts = self._experts()
      layer.tr_fflayer_tpl = experts
      layer.hidden_dims = experts.hidden_dims
    return layer

  def _template(self, i: int) -> LayerTpl:
    templates = self.transformer_layer_params_tpl
    if not isinstance(templates, Sequence):
      return templates
    return templates[i // (self.num_layers // len(templates))]

  def _dropout(self, prob: float | None) -> float:
    return self.dropout_prob if prob is None else prob

  def _window(self, i: int) -> _Window:
    sizes = self.local_window_size
    per_layer = any(not isinstance(size, int) for size in sizes)
    return sizes[i] if per_layer else tuple(sizes)

  def _experts(self) -> LayerTpl:
    experts = self.moe_layer_tpl.clone().set(
      num_experts=self.num_experts,
      num_groups=self.num_groups,
      min_group_size=self.min_group_size,
      gating_func=self.gating_func,
    )
    if not experts.has('unadjusted_expert_capacity_factor'):
      factor = self.unadjusted_expert_capacity_factor
      experts.unadjusted_expert_capacity_factor = factor
    experts.hidden_dims = experts.hidden_dims or self.hidden_dims
    return experts

  def _check_fields(self) -> None:
    self._check_positive('num_layers', 'model_dims', 'hidden_dims')
    templates = self.transformer_layer_params_tpl
    if isinstance(templates, Sequence) and self.num_layers % len(templates):
      raise ValueError(
        'num_layers must be a multiple of the number of templates in '
        f'transformer_layer_params_tpl ({len(templates)}), got '
        f'{self.num_layers}'
      )
    if self.moe_layers and (self.moe_layer_tpl is None or not self.num_experts):
      raise ValueError(
        f'moe_layers={list(self.moe_layers)} need num_experts and '
        f'moe_layer_tpl, got num_experts={self.num_experts}'
      )
    ngrammers = self.ngrammer_tpls
    if ngrammers is not None and len(ngrammers) != self.num_layers:
      raise ValueError(
        f'ngrammer_tpls must be one for each of {self.num_layers} layers, or '
        f'None for it, got {len(ngrammers)}'
      )


def _layer_output(
  layer: transformer.Transformer, *arguments: Array | None
) -> Array:
  outputs, _ = layer(*arguments)
  return outputs


def _mask_of_steps(
  inputs: Array,
  time_step: Array | int,
  seq_len: int,
  segment_pos: Array | None,
) -> Array:
  """Returns [B or 1, 1, S] for one step, [B or 1, 1, L, S] for several."""
  steps = 1 if inputs.ndim == 2 else inputs.shape[1]
  if segment_pos is None:
    segment_pos = (time_step + jnp.arange(steps))[jnp.newaxis]
  elif segment_pos.ndim == 1:
    segment_pos = segment_pos[:, jnp.newaxis] + jnp.arange(steps)
  mask = masks.mask_of_steps(time_step, seq_len, segment_pos)
  return mask[:, :, 0] if inputs.ndim == 2 else mask
