# SPDX-License-Identifier: Apache-2.0
"""A stack of transformer layers with separate weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax.linen as nn
from jaxtyping import Array, Float, Int

from praxis import base_layer, pax_fiddle
from praxis.base_layer import weight_sharing
from praxis.layers import checkpoint_policy as checkpoint_policy_lib
from praxis.layers import shared_key_attention, stochastics
from praxis.layers.attentions import masks
from praxis.layers.attentions.attention_core import KeysAndValues
from praxis.layers.transformers import (
  feed_forward_moe,
  stack_masks,
  transformer,
  transformer_stack,
)

AutodiffCheckpointType = checkpoint_policy_lib.AutodiffCheckpointType
LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]
template_field = pax_fiddle.template_field
# (left, right): keys visible to a query on each side; None for all.
_Window = tuple[int, int] | None


class StackedTransformer(transformer_stack.TransformerStack):
  """A sequence of transformer layers, `x_layers`, with shared masks."""

  # Whether layers have cross-attention.
  use_cross_attention: bool = False
  # Whether self-attention masks later positions.
  mask_self_attention: bool = False
  num_layers: int = 0
  # Model dimension, hidden dimension of feed-forward blocks unless the template
  # of a layer sets its own, attention heads.
  model_dims: int = 0
  hidden_dims: int = 0
  num_heads: int = 0
  dim_per_head: int | None = None
  # Dropout probability; the next three override it by kind.
  dropout_prob: float = 0.0
  atten_dropout_prob: float | None = None
  residual_dropout_prob: float | None = None
  relu_dropout_prob: float | None = None
  # Stochastic depth: layer i is skipped with probability i / num_layers times
  # this (arXiv:1603.09382, linear decay).
  residual_droppath_prob: float = 0.0
  input_dropout_prob: float = 0.0
  # Routing of the MoE layers; see TransformerFeedForwardMoe. A capacity factor
  # set in moe_layer_tpl takes precedence.
  gating_func: str = 'top2'
  unadjusted_expert_capacity_factor: float = 2.0
  # One template for all layers, or k templates for num_layers / k consecutive
  # layers each.
  transformer_layer_params_tpl: LayerTpl | Sequence[LayerTpl] = template_field(
    transformer.Transformer
  )
  # Whether rows hold several segments; segment_mask is then required.
  packed_input: bool = False
  # Whether segment_mask also masks padding.
  fold_padding_with_segment_mask: bool = False
  # The feed-forward block of the layers whose indices are in moe_layers.
  moe_layer_tpl: LayerTpl | None = template_field(
    feed_forward_moe.TransformerFeedForwardMoe
  )
  num_experts: int = 0
  num_groups: int = 1
  min_group_size: int | None = None
  moe_layers: Sequence[int] | None = ()
  # An n-grammer, or None, after the self-attention of each layer.
  ngrammer_tpls: Sequence[LayerTpl | None] | None = template_field(None)
  # Whether to rematerialize each layer in the backward pass, and the policy.
  remat: bool = False
  checkpoint_policy: AutodiffCheckpointType = (
    AutodiffCheckpointType.SAVE_DOT_EXCEPT_LOGITS_FFN1
  )
  # Local attention window of all layers, or a sequence with one per layer.
  local_window_size: _Window | Sequence[_Window] = None
  # The index of the earlier layer, with a KeySourceAttention, whose keys and
  # values the SharedKeyAttention of each layer attends to; None for its own.
  key_sources: Sequence[int | None] | None = None

  def setup(self) -> None:
    self._check_stack_fields()
    layers = [self._layer_tpl(i) for i in range(self.num_layers)]
    self.create_children('x_layers', layers)
    if self.input_dropout_prob > 0.0:
      self.create_child(
        'input_dropout',
        pax_fiddle.Config(
          stochastics.Dropout, keep_prob=1.0 - self.input_dropout_prob
        ),
      )

  def _run(
    self, inputs: Float[Array, 'B T D'], context: transformer_stack.LayerContext
  ) -> Float[Array, 'B T D']:
    if self.packed_input and context.segment_mask is None:
      raise ValueError(
        'segment_mask must be given with packed_input=True, got None; build it '
        'with attentions.segment_mask or causal_segment_mask'
      )
    mask, cross_mask = stack_masks.compute_attention_masks_for_fprop(
      inputs,
      context.paddings,
      self.mask_self_attention,
      context.segment_mask,
      context.cross_inputs if self.use_cross_attention else None,
      context.cross_paddings,
      context.cross_segment_mask,
      self.fold_padding_with_segment_mask,
    )
    outputs = inputs
    if self.input_dropout_prob > 0.0:
      outputs = self.input_dropout(outputs)
    run_layer = self._layer_runner()
    shared: dict[int, KeysAndValues] = {}
    for i in range(self.num_layers):
      own = self._own_inputs(i, context.layer_inputs, shared)
      outputs, keys = run_layer(
        *(i, own, outputs, context.paddings, mask),
        *(context.cross_inputs, cross_mask, context.segment_pos),
      )
      if keys is not None:
        shared[i] = keys
    return outputs

  def _layer_runner(
    self,
  ) -> Callable[..., tuple[Float[Array, 'B T D'], KeysAndValues | None]]:
    """Returns `_run_layer` by the index of the layer, rematerialized or not."""
    if not self.remat or self.do_eval:
      return lambda i, *args: _run_layer(self.x_layers[i], *args)
    policy = checkpoint_policy_lib.custom_policy(self.checkpoint_policy)
    if not weight_sharing.has_shared_layers(self.transformer_layer_params_tpl):
      rematerialized = nn.remat(_run_layer, policy=policy)
      return lambda i, *args: rematerialized(self.x_layers[i], *args)

    # What layers share is in the stack, whose other layers a layer does not see
    # where it is rematerialized alone.
    def run_in_stack(i: int, *args: Any) -> tuple[Array, KeysAndValues | None]:
      def run(stack: StackedTransformer, *args: Any) -> Any:
        return _run_layer(stack.x_layers[i], *args)

      return nn.remat(run, policy=policy)(self, *args)

    return run_in_stack

  def _run_step(
    self, inputs: Float[Array, 'B *L D'], context: transformer_stack.StepContext
  ) -> Float[Array, 'B *L D']:
    # Layers whose state has no steps return 0.
    seq_len = max(x.decoding_sequence_length() for x in self.x_layers)
    mask, cross_mask = stack_masks.compute_attention_masks_for_extend_step(
      context.time_step,
      seq_len,
      cross_paddings=context.cross_paddings
      if self.use_cross_attention
      else None,
      cross_segment_mask=context.cross_segment_mask,
    )
    if context.atten_mask is not None:
      mask = context.atten_mask
    elif context.segment_pos is not None or inputs.ndim == 3:
      mask = _segment_step_mask(
        inputs, context.time_step, seq_len, context.segment_pos
      )
    outputs = inputs
    shared: dict[int, KeysAndValues] = {}
    for i, layer in enumerate(self.x_layers):
      outputs = layer.extend_step(
        outputs,
        time_step=context.time_step,
        segment_pos=context.segment_pos,
        attention_mask=mask,
        cross_attention_mask=cross_mask,
        **self._own_inputs(i, context.layer_inputs, shared),
      )
      if i in (self.key_sources or ()):
        shared[i] = layer.self_attention.cached_keys_and_values()
    return outputs

  def _own_inputs(
    self,
    index: int,
    layer_inputs: Float[Array, 'B *L N P'] | None,
    shared: Mapping[int, KeysAndValues],
  ) -> dict[str, Any]:
    """Returns the arguments that only one layer gets.

    Args:
      index: of the layer.
      layer_inputs: those of all layers.
      shared: keys and values of earlier layers by their index.
    """
    own: dict[str, Any] = {}
    if layer_inputs is not None:
      own['layer_input'] = layer_inputs[..., index, :]
    source = None if self.key_sources is None else self.key_sources[index]
    if source is not None:
      own['keys_and_values'] = shared[source]
    return own

  def _visit_decode_states(
    self, visit: Callable[[base_layer.BaseLayer], None]
  ) -> None:
    for layer in self.x_layers:
      visit(layer)

  def _layer_tpl(self, i: int) -> LayerTpl:
    layer = self._template_of_layer(i).clone()
    layer.set(
      use_cross_attention=self.use_cross_attention,
      dim_per_head=self.dim_per_head,
      input_dims=self.model_dims,
      hidden_dims=layer.hidden_dims or self.hidden_dims,
      packed_input=self.packed_input,
      atten_dropout_prob=self._dropout_prob(self.atten_dropout_prob),
      residual_dropout_prob=self._dropout_prob(self.residual_dropout_prob),
      relu_dropout_prob=self._dropout_prob(self.relu_dropout_prob),
    )
    if self.num_heads:
      layer.num_heads = self.num_heads
    if self.residual_droppath_prob > 0.0:
      layer.residual_droppath_prob = (
        self.residual_droppath_prob * i / max(1, self.num_layers)
      )
    if self.local_window_size is not None:
      window = self._windows(self.local_window_size)[i]
      layer.tr_atten_tpl.local_window_size = window
    if self.ngrammer_tpls is not None and self.ngrammer_tpls[i] is not None:
      layer.ngrammer_tpl = self.ngrammer_tpls[i]
    if self.moe_layer_tpl is not None and i in (self.moe_layers or ()):
      layer.tr_fflayer_tpl = self._moe_tpl(self.moe_layer_tpl)
      layer.hidden_dims = layer.tr_fflayer_tpl.hidden_dims
    return layer

  def _template_of_layer(self, i: int) -> LayerTpl:
    templates = self.transformer_layer_params_tpl
    if not isinstance(templates, Sequence):
      return templates
    return templates[i // (self.num_layers // len(templates))]

  def _dropout_prob(self, prob: float | None) -> float:
    return self.dropout_prob if prob is None else prob

  def _windows(
    self, size: tuple[int, int] | Sequence[_Window]
  ) -> Sequence[_Window]:
    """Returns the window of each layer."""
    windows = [window for window in size if not isinstance(window, int)]
    pair = tuple(n for n in size if isinstance(n, int))
    if len(pair) == 2 and not windows:
      return [pair] * self.num_layers
    if pair or len(windows) != self.num_layers:
      raise ValueError(
        'local_window_size must be one pair (left, right), or a pair for each '
        f'of {self.num_layers} layers, got {size}'
      )
    return windows

  def _moe_tpl(self, template: LayerTpl) -> LayerTpl:
    moe = template.clone().set(
      num_experts=self.num_experts,
      num_groups=self.num_groups,
      min_group_size=self.min_group_size,
      gating_func=self.gating_func,
    )
    if not moe.has('unadjusted_expert_capacity_factor'):
      factor = self.unadjusted_expert_capacity_factor
      moe.unadjusted_expert_capacity_factor = factor
    moe.hidden_dims = moe.hidden_dims or self.hidden_dims
    return moe

  def _check_key_sources(self) -> None:
    """Raises ValueError if a layer has no such source."""
    sources = self.key_sources
    if sources is None:
      return
    if len(sources) != self.num_layers:
      raise ValueError(
        f'key_sources must have an entry for each of {self.num_layers} layers'
        f' (None for its own keys), got {len(sources)}'
      )
    for i, source in enumerate(sources):
      if source is None:
        continue
      attention = self._template_of_layer(source).tr_atten_tpl.cls
      if not (
        0 <= source < i
        and issubclass(attention, shared_key_attention.KeySourceAttention)
      ):
        raise ValueError(
          f'key_sources[{i}] must be the index of an earlier layer with a'
          f' KeySourceAttention, got {source} with a {attention.__name__}; set'
          ' tr_atten_tpl of its template'
        )

  def _check_stack_fields(self) -> None:
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
    if self.local_window_size is not None:
      self._windows(self.local_window_size)
    self._check_key_sources()
    ngrammers = self.ngrammer_tpls
    if ngrammers is not None and len(ngrammers) != self.num_layers:
      raise ValueError(
        f'ngrammer_tpls must have an entry for each of {self.num_layers} '
        f'layers (None for no n-grammer), got {len(ngrammers)}'
      )


def _run_layer(
  layer: transformer.Transformer, own: Mapping[str, Any], *args: Any
) -> tuple[Float[Array, 'B T D'], KeysAndValues | None]:
  """Returns the output of a layer, and its keys and values if others use them.

  Args:
    layer: the layer.
    own: further arguments, by name.
    *args: those of all layers.
  """
  outputs, attended = layer(*args, **own)
  keys = attended.get('self_atten')
  return outputs, keys if isinstance(keys, KeysAndValues) else None


def _segment_step_mask(
  inputs: Float[Array, 'B *L D'],
  time_step: Int[Array, ''] | int,
  seq_len: int,
  segment_pos: Int[Array, ' B *L'] | None,
) -> Float[Array, '#B 1 *L S']:
  """Returns the mask of L steps, or of one step without the dimension L."""
  num_steps = 1 if inputs.ndim == 2 else inputs.shape[1]
  segment_pos = masks.step_positions(segment_pos, time_step, num_steps)
  mask = masks.segment_step_mask(time_step, seq_len, segment_pos)
  return mask[:, :, 0] if inputs.ndim == 2 else mask
