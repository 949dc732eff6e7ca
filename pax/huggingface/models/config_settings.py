# SPDX-License-Identifier: Apache-2.0
"""Settings of config.json that families share."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from pax.huggingface.layers.feed_forward import FeedForward
from pax.huggingface.layers.mixers import Mixer
from pax.huggingface.layers.mixture_of_experts import MixtureOfExperts
from pax.huggingface.layers.mtp_modules import MtpModules
from pax.huggingface.layers.rotary_attention import RotaryAttention
from pax.huggingface.layers.rotary_decoder import RotaryDecoder

# Contents of config.json.
Json = Mapping[str, Any]


def rotary_decoder(
  config: Json, mixers: Sequence[Mixer], **settings: Any
) -> RotaryDecoder:
  """Returns a decoder by the settings that its families share.

  Args:
    config: Contents of config.json.
    mixers: That of each layer.
    **settings: Fields that only some families have.

  Raises:
    ValueError: A setting is not supported.
  """
  settings.setdefault('feed_forward', feed_forward(config))
  return RotaryDecoder(
    vocab_size=size(config, 'vocab_size'),
    model_dims=size(config, 'hidden_size'),
    norm_epsilon=config.get('rms_norm_eps', 1e-6),
    mixers=tuple(mixers),
    is_tied=config.get('tie_word_embeddings', False),
    mtp_modules=MtpModules.read(config),
    **settings,
  )


def feed_forward(config: Json, **settings: Any) -> FeedForward:
  """Returns feed-forward layers by the settings that families share.

  Args:
    config: Contents of config.json.
    **settings: Fields that only some families have, or name differently.

  Raises:
    ValueError: A setting is not supported.
  """
  settings.setdefault('activation', config.get('hidden_act', 'silu'))
  return FeedForward(hidden_dims=size(config, 'intermediate_size'), **settings)


def rotary_attention(
  config: Json,
  kind: type[RotaryAttention] = RotaryAttention,
  *,
  has_partial_rotary: bool = False,
  **settings: Any,
) -> RotaryAttention:
  """Returns an attention by the settings that families share.

  Args:
    config: Contents of config.json.
    kind: Class of the attention.
    has_partial_rotary: Whether `partial_rotary_factor` may be less than 1.
    **settings: Fields that only some families have.

  Raises:
    ValueError: A setting is not supported.
  """
  num_heads = size(config, 'num_attention_heads')
  head_dim = config.get('head_dim') or size(config, 'hidden_size') // num_heads
  of_rope = rope(config)
  if has_partial_rotary:
    factor = of_rope.pop('partial_rotary_factor')
    settings['rotary_dims'] = _rotary_dims(head_dim, factor)
  return kind(
    num_heads=num_heads,
    num_kv_heads=config.get('num_key_value_heads') or num_heads,
    dim_per_head=head_dim,
    rope=of_rope,
    **settings,
  )


def of_all_layers(config: Json, mixer: Mixer) -> tuple[Mixer, ...]:
  """Returns the mixers of layers that have the same."""
  return (mixer,) * size(config, 'num_hidden_layers')


def with_windows(
  attention: RotaryAttention,
  windows: Sequence[int | None],
  window_rope: Json | None = None,
) -> tuple[RotaryAttention, ...]:
  """Returns the attentions of layers.

  Args:
    attention: That of a layer without a window.
    windows: The window of each layer; None for none.
    window_rope: `rope_parameters` of layers with a window; None for the same.
  """
  local = attention
  if window_rope is not None:
    local = dataclasses.replace(attention, rope=window_rope)
  return tuple(
    attention if window is None else dataclasses.replace(local, window=window)
    for window in windows
  )


def with_rotation_in(
  rotary_layers: Sequence[bool], attentions: Sequence[RotaryAttention]
) -> tuple[RotaryAttention, ...]:
  """Returns the attentions of layers, without a rope where they do not rotate.

  Args:
    rotary_layers: Whether each layer rotates queries and keys.
    attentions: Those of all layers, with a rope.
  """
  return tuple(
    attention if rotates else dataclasses.replace(attention, rope=None)
    for rotates, attention in zip(rotary_layers, attentions, strict=True)
  )


def _rotary_dims(head_dim: int, factor: Any) -> int:
  """Returns the number of channels of a head that are rotated.

  Raises:
    ValueError: They are no pairs.
  """
  is_number = type(factor) in (int, float)
  dims = int(head_dim * factor) if is_number else 0
  if dims % 2 or not 0 < dims <= head_dim:
    raise ValueError(
      'partial_rotary_factor in config.json must be a number whose product with'
      f' {head_dim}, the channels of a head, is even and at most {head_dim},'
      f' got {factor!r}; use the file that save_pretrained writes'
    )
  return dims


def size(config: Json, name: str) -> int:
  """Returns a setting that is a number of something.

  Raises:
    ValueError: It is not positive.
  """
  value = config[name]
  if type(value) is not int or value < 1:
    raise ValueError(
      f'{name} in config.json must be an integer at least 1, got {value!r}; use'
      ' the file that save_pretrained writes'
    )
  return value


def rope(config: Json) -> dict[str, Any]:
  """Returns `rope_parameters`; older files have other names.

  Raises:
    ValueError: It is no object.
  """
  settings = config.get('rope_scaling') or config.get('rope_parameters') or {}
  if not isinstance(settings, Mapping):
    raise ValueError(
      'rope_scaling or rope_parameters in config.json must be an object, got'
      f' {settings!r}; use the file that save_pretrained writes'
    )
  found = dict(settings)
  found.setdefault('rope_theta', config.get('rope_theta', 10000.0))
  found.setdefault('rope_type', found.get('type', 'default'))
  found.setdefault(
    'partial_rotary_factor', config.get('partial_rotary_factor', 1.0)
  )
  return found


def ropes_by_layer_type(
  config: Json, thetas: Mapping[str, float]
) -> tuple[Json, Json]:
  """Returns the settings of layers without and with a window.

  Files of older versions of transformers have one for each theta, and the
  scaling of the former.

  Args:
    config: Contents of config.json.
    thetas: The `rope_theta` by layer type where `rope_parameters` has none.
  """
  ropes = config.get('rope_parameters')
  if ropes is None:
    scaling = config.get('rope_scaling') or {}
    ropes = {'full_attention': scaling, 'sliding_attention': {}}
  full, window = (
    {'rope_parameters': {'rope_theta': thetas[kind], **(ropes[kind] or {})}}
    for kind in ('full_attention', 'sliding_attention')
  )
  return {'rope_scaling': None, **full}, window


def rotary_layers(config: Json) -> tuple[bool, ...]:
  """Returns whether each layer rotates queries and keys.

  Raises:
    ValueError: `no_rope_layers` has no value for a layer.
  """
  num_layers = size(config, 'num_hidden_layers')
  # 1 for layers that do, against the name.
  rotates = config.get('no_rope_layers')
  if rotates is None:
    period = size(
      {'no_rope_layer_interval': 4, **config}, 'no_rope_layer_interval'
    )
    rotates = [(i + 1) % period != 0 for i in range(num_layers)]
  if not isinstance(rotates, list) or len(rotates) < num_layers:
    raise ValueError(
      'no_rope_layers in config.json must be a list with 1 for each of'
      f' {num_layers} layers with rotary positions and 0 for others, got'
      f' {rotates!r}; use the file that save_pretrained writes'
    )
  return tuple(map(bool, rotates[:num_layers]))


def windows(
  config: Json,
  kinds: Sequence[str],
  window: int | None,
  *,
  local: str = 'sliding_attention',
) -> tuple[int | None, ...]:
  """Returns the windows of layers by their `layer_types`.

  Args:
    config: Contents of config.json.
    kinds: The types.
    window: That of layers of the type `local`; others have none.
    local: A type.

  Raises:
    ValueError: A type is unknown, or a layer has none.
  """
  sizes = {local: window, 'full_attention': None}
  if unknown := set(kinds) - sizes.keys():
    raise ValueError(
      f'layer_types in config.json must be of {sorted(sizes)}, got'
      f' {sorted(unknown)}'
    )
  num_layers = size(config, 'num_hidden_layers')
  if len(kinds) != num_layers:
    raise ValueError(
      f'layer_types in config.json must have one for each of {num_layers}'
      f' layers, got {len(kinds)}; use the file that save_pretrained writes'
    )
  return tuple(sizes[kind] for kind in kinds)


def experts(
  config: Json,
  kind: type[MixtureOfExperts] = MixtureOfExperts,
  **settings: Any,
) -> MixtureOfExperts:
  """Returns mixtures by the settings that their families share.

  Args:
    config: Contents of config.json.
    kind: Class of the mixtures.
    **settings: Other fields.

  Raises:
    ValueError: A setting is not supported.
  """
  # transformers 5 writes num_local_experts for all families.
  name = 'num_local_experts'
  experts_per_token = size(config, 'num_experts_per_tok')
  # The loss of transformers adds up the shares of all choices, and has the mean
  # over layers.
  weight = config.get('router_aux_loss_coef', 0.001) * experts_per_token
  return kind(
    num_experts=size(config, name if name in config else 'num_experts'),
    experts_per_token=experts_per_token,
    load_balance_loss_weight=weight / max(len(settings['layers']), 1),
    **settings,
  )


def expert_layers(config: Json) -> tuple[int, ...]:
  """Returns the indices of the layers with experts, as Qwen names them."""
  step = config.get('decoder_sparse_step', 1)
  dense = config.get('mlp_only_layers') or ()
  num_layers = size(config, 'num_hidden_layers')
  return tuple(
    i for i in range(num_layers) if i not in dense and (i + 1) % step == 0
  )


def check_layer_types(
  kinds: Sequence[str], known: Sequence[str], num_layers: int
) -> None:
  """Checks `layer_types`.

  Args:
    kinds: Those of the layers.
    known: All types.
    num_layers: Number of layers.

  Raises:
    ValueError: There are other types, or not one for each layer.
  """
  if len(kinds) != num_layers or not {*kinds} <= {*known}:
    raise ValueError(
      f'layer_types in config.json must have one of {list(known)} for each of'
      f' {num_layers} layers, got {list(kinds)}; use the file that'
      ' save_pretrained writes'
    )
