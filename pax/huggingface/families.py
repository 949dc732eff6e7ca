# SPDX-License-Identifier: Apache-2.0
"""Families of models by the `model_type` of config.json.

A family reads the settings of a model from its config.json. Absent values have
the defaults of transformers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Protocol

from pax.huggingface import weight_layouts
from pax.huggingface.gpt2 import Gpt2
from pax.huggingface.latent_attention import LatentAttention
from pax.huggingface.mixture_of_experts import ExpertTensors, MixtureOfExperts
from pax.huggingface.rotary_decoder import RotaryDecoder, yarn_scale
from pax.huggingface.t5 import T5
from pax.huggingface.weight_layouts import WeightLayout
from praxis import base_layer, pax_fiddle

# Contents of config.json.
Json = Mapping[str, Any]

# Weight of the softmax.
_HEAD = 'lm_head.weight'


class Model(Protocol):
  """A model of Hugging Face in terms of Pax."""

  def model(self) -> pax_fiddle.Config[base_layer.BaseLayer]:
    """Returns the Config of the model."""
    ...

  def weights(self) -> Iterator[WeightLayout]:
    """Yields the layouts of all weights."""
    ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
  """Models with the same `model_type`."""

  # Returns the settings of a model from its config.json.
  read: Callable[[Json], Model]
  # Prefix of the names of tensors, which files of the network without its head
  # leave out.
  prefix: str = 'model.'
  # Regexes of tensors that are no weights but tables.
  ignored: tuple[str, ...] = (r'.*rotary_emb\.inv_freq',)
  # Tensors that are copies of tied weights, where they are no weights, and the
  # tensors of those.
  copies: Mapping[str, str] = dataclasses.field(
    default_factory=lambda: {_HEAD: 'model.embed_tokens.weight'}
  )


def read_model(config: Json) -> Model:
  """Returns the model of a config.json.

  Raises:
    ValueError: The family or a setting of it is not supported.
  """
  family = find_family(config)
  try:
    return family.read(config)
  except KeyError as e:
    raise ValueError(
      f'config.json of a {config["model_type"]} must have {e}, got'
      f' {sorted(config)}; use the file that save_pretrained writes'
    ) from e


def find_family(config: Json) -> Family:
  """Returns the family of a config.json.

  Raises:
    ValueError: It is not supported.
  """
  name = config.get('model_type')
  if not isinstance(name, str) or name not in FAMILIES:
    raise ValueError(
      f'model_type in config.json must be one of {sorted(FAMILIES)}, got'
      f' {name!r}; only these families have a mapping of their weights'
    )
  return FAMILIES[name]


def find_tensors(
  family: Family, model: Model, names: Collection[str]
) -> dict[str, list[WeightLayout]]:
  """Returns the layouts of a model by the names of tensors in its files.

  Args:
    family: The family.
    model: The model.
    names: Names of the tensors in the files.

  Raises:
    ValueError: A weight is missing.
  """
  tensors = {}
  for tensor, layouts in weight_layouts.by_tensor(model.weights()).items():
    name = tensor if tensor in names else tensor.removeprefix(family.prefix)
    if name not in names:
      raise ValueError(
        f'the safetensors files must have {tensor}, got {len(names)}'
        f' tensors such as {sorted(names)[:3]}; config.json and the files'
        ' must be of one model'
      )
    tensors[name] = layouts
  return tensors


def find_copies(
  family: Family,
  layouts: Mapping[str, Sequence[WeightLayout]],
  names: Collection[str],
) -> dict[str, str]:
  """Returns the tensors in files that are copies, with what they are copies of.

  Args:
    family: The family.
    layouts: See `find_tensors`.
    names: Names of the tensors in the files.
  """
  in_files = {parts[0].tensor: name for name, parts in layouts.items()}
  return {
    name: in_files[tensor]
    for name, tensor in family.copies.items()
    if name in names and name not in layouts
  }


def _llama(config: Json) -> RotaryDecoder:
  has_bias = config.get('attention_bias', False)
  return _rotary_decoder(
    config,
    activation=config.get('hidden_act', 'silu'),
    has_qkv_bias=has_bias,
    has_output_bias=has_bias,
    has_ffn_bias=config.get('mlp_bias', False),
  )


def _mistral(config: Json) -> RotaryDecoder:
  window = config.get('sliding_window', 4096)
  return _rotary_decoder(
    config,
    activation=config.get('hidden_act', 'silu'),
    windows=(window,) * _size(config, 'num_hidden_layers'),
  )


def _mixtral(config: Json) -> RotaryDecoder:
  if config.get('router_jitter_noise'):
    raise ValueError(
      'router_jitter_noise in config.json must be 0, got'
      f' {config["router_jitter_noise"]}; no layer of praxis adds it'
    )
  num_layers = _size(config, 'num_hidden_layers')
  return _rotary_decoder(
    {'num_key_value_heads': 8, 'rms_norm_eps': 1e-5, **config},
    activation=config.get('hidden_act', 'silu'),
    windows=(config.get('sliding_window'),) * num_layers,
    experts=_experts(
      {'num_local_experts': 8, 'num_experts_per_tok': 2, **config},
      hidden_dims=_size(config, 'intermediate_size'),
      layers=tuple(range(num_layers)),
      normalize_gates=True,
      tensors=ExpertTensors(
        mixture='block_sparse_moe', gate='w1', up='w3', down='w2'
      ),
    ),
  )


def _qwen2(config: Json) -> RotaryDecoder:
  return _rotary_decoder(
    config,
    activation=config.get('hidden_act', 'silu'),
    has_qkv_bias=True,
    windows=_qwen_windows(config),
  )


def _qwen3(config: Json) -> RotaryDecoder:
  has_bias = config.get('attention_bias', False)
  return _rotary_decoder(
    {'head_dim': 128, **config},
    activation=config.get('hidden_act', 'silu'),
    has_qkv_bias=has_bias,
    has_output_bias=has_bias,
    has_head_norms=True,
    windows=_qwen_windows(config),
  )


def _qwen3_moe(config: Json) -> RotaryDecoder:
  num_layers = _size(config, 'num_hidden_layers')
  window = config.get('sliding_window', 4096)
  is_windowed = config.get('use_sliding_window', False)
  step = config.get('decoder_sparse_step', 1)
  dense = config.get('mlp_only_layers') or ()
  qwen3 = _qwen3(
    {
      'num_key_value_heads': 4,
      'head_dim': None,
      **config,
      'use_sliding_window': False,
    }
  )
  return dataclasses.replace(
    qwen3,
    windows=(window,) * num_layers if is_windowed else (),
    experts=_experts(
      {'num_experts': 128, 'num_experts_per_tok': 8, **config},
      hidden_dims=config.get('moe_intermediate_size', 768),
      layers=tuple(
        i for i in range(num_layers) if i not in dense and (i + 1) % step == 0
      ),
      normalize_gates=config.get('norm_topk_prob', False),
      tensors=ExpertTensors(
        mixture='mlp', gate='gate_proj', up='up_proj', down='down_proj'
      ),
    ),
  )


def _experts(config: Json, **settings: Any) -> MixtureOfExperts:
  # transformers 5 writes num_local_experts for all families.
  name = 'num_local_experts'
  experts_per_token = _size(config, 'num_experts_per_tok')
  # The loss of transformers adds up the shares of all choices, and has the mean
  # over layers.
  weight = config.get('router_aux_loss_coef', 0.001) * experts_per_token
  return MixtureOfExperts(
    num_experts=_size(config, name if name in config else 'num_experts'),
    experts_per_token=experts_per_token,
    load_balance_loss_weight=weight / max(len(settings['layers']), 1),
    **settings,
  )


def _deepseek_v2(config: Json) -> RotaryDecoder:
  if config.get('norm_topk_prob'):
    raise ValueError(
      'norm_topk_prob in config.json of a deepseek_v2 must be false, got true;'
      ' transformers does not normalize its gates'
    )
  config = {'n_shared_experts': 2, **config, 'norm_topk_prob': False}
  routing: dict[str, Any] = {}
  method = config.get('topk_method', 'greedy')
  if method == 'group_limited_greedy':
    routing = _expert_groups(config, experts_per_group_score=1)
  elif method != 'greedy':
    raise ValueError(
      "topk_method in config.json must be 'greedy' or 'group_limited_greedy',"
      f' got {method!r}'
    )
  return _deepseek(
    {'first_k_dense_replace': 0, 'n_routed_experts': 64, **config},
    routing={**routing, 'gate_scale': config.get('routed_scaling_factor', 1.0)},
  )


def _deepseek_v3(config: Json) -> RotaryDecoder:
  config = {'n_group': 8, 'topk_group': 4, 'num_experts_per_tok': 8, **config}
  return _deepseek(
    {'first_k_dense_replace': 3, 'n_routed_experts': 256, **config},
    choice_bias='gate.e_score_correction_bias',
    routing={
      **_expert_groups(config, experts_per_group_score=2),
      'gate_function': 'sigmoid',
      'gate_scale': config.get('routed_scaling_factor', 2.5),
    },
  )


def _expert_groups(config: Json, **settings: int) -> dict[str, int]:
  return {
    'num_expert_groups': _size(config, 'n_group'),
    'groups_per_token': _size(config, 'topk_group'),
    **settings,
  }


def _deepseek(
  config: Json, routing: Mapping[str, Any], choice_bias: str | None = None
) -> RotaryDecoder:
  rope, num_layers = _rope(config), _size(config, 'num_hidden_layers')
  nope_dim = config.get('qk_nope_head_dim', 128)
  rope_dim = config.get('qk_rope_head_dim', 64)
  hidden_dims = _size(config, 'moe_intermediate_size')
  scale = (nope_dim + rope_dim) ** -0.5
  if rope['rope_type'] != 'default' and rope.get('mscale_all_dim'):
    scale *= yarn_scale(rope, 'mscale_all_dim') ** 2
  decoder = _rotary_decoder(
    {**config, 'head_dim': nope_dim + rope_dim},
    activation=config.get('hidden_act', 'silu'),
    has_ffn_bias=config.get('mlp_bias', False),
    query_scale=scale,
    latent_attention=LatentAttention(
      num_heads=_size(config, 'num_attention_heads'),
      query_rank=config.get('q_lora_rank', 1536),
      key_value_rank=config.get('kv_lora_rank', 512),
      nope_dim=nope_dim,
      rope_dim=rope_dim,
      value_dim=config.get('v_head_dim', 128),
      has_interleaved_pairs=config.get('rope_interleave', True),
      has_bias=config.get('attention_bias', False),
    ),
  )
  experts = MixtureOfExperts(
    num_experts=_size(config, 'n_routed_experts'),
    experts_per_token=_size(config, 'num_experts_per_tok'),
    hidden_dims=hidden_dims,
    layers=tuple(range(config['first_k_dense_replace'], num_layers)),
    normalize_gates=config.get('norm_topk_prob', True),
    # Transformers adds none; that of the papers is of each sequence.
    load_balance_loss_weight=config.get('aux_loss_alpha', 0.0),
    shared_hidden_dims=hidden_dims * config.get('n_shared_experts', 1),
    shared_has_bias=decoder.has_ffn_bias,
    routing={'balances_each_sequence': True, **routing},
    tensors=ExpertTensors(
      mixture='mlp',
      gate='gate_proj',
      up='up_proj',
      down='down_proj',
      shared='shared_experts',
      choice_bias=choice_bias,
    ),
  )
  return dataclasses.replace(decoder, experts=experts)


def _gemma(config: Json) -> RotaryDecoder:
  _check_causal(config)
  has_bias = config.get('attention_bias', False)
  # Files of the first release name the exact GELU, and mean the approximation.
  activation = config.get('hidden_activation') or config.get('hidden_act')
  if activation in (None, 'gelu'):
    activation = 'gelu_pytorch_tanh'
  return _rotary_decoder(
    {'head_dim': 256, 'tie_word_embeddings': True, **config},
    activation=activation,
    has_qkv_bias=has_bias,
    has_output_bias=has_bias,
    scales_embedding=True,
    has_offset_norms=True,
  )


def _gemma2(config: Json) -> RotaryDecoder:
  gemma = _gemma({'num_key_value_heads': 4, **config})
  num_layers = _size(config, 'num_hidden_layers')
  kinds = config.get('layer_types') or [
    'full_attention' if i % 2 else 'sliding_attention'
    for i in range(num_layers)
  ]
  return dataclasses.replace(
    gemma,
    activation=config.get('hidden_activation', 'gelu_pytorch_tanh'),
    has_output_norms=True,
    windows=_windows(kinds, config.get('sliding_window', 4096)),
    query_scale=config.get('query_pre_attn_scalar', 256) ** -0.5,
    attention_logit_cap=config.get('attn_logit_softcapping', 50.0),
    logit_cap=config.get('final_logit_softcapping', 30.0),
  )


def _gemma3(config: Json) -> RotaryDecoder:
  window = config.get('sliding_window', 4096)
  period = config.get('sliding_window_pattern') or config.get(
    '_sliding_window_pattern', 6
  )
  kinds = config.get('layer_types') or [
    'sliding_attention' if (i + 1) % period else 'full_attention'
    for i in range(_size(config, 'num_hidden_layers'))
  ]
  rope, window_rope = _gemma3_ropes(config)
  gemma = _gemma({'num_key_value_heads': 4, **config, **rope})
  return dataclasses.replace(
    gemma,
    activation=config.get('hidden_activation', 'gelu_pytorch_tanh'),
    has_head_norms=True,
    has_output_norms=True,
    windows=_windows(kinds, window),
    window_rope=_rope(window_rope),
    query_scale=config.get('query_pre_attn_scalar', 256) ** -0.5,
    attention_logit_cap=config.get('attn_logit_softcapping'),
    logit_cap=config.get('final_logit_softcapping'),
  )


def _gemma3_ropes(config: Json) -> tuple[Json, Json]:
  """Returns the settings of layers without and with a window.

  Files of older versions of transformers have one for each theta, and the
  scaling of the former.
  """
  thetas = {
    'full_attention': config.get('rope_theta', 1_000_000.0),
    'sliding_attention': config.get('rope_local_base_freq', 10_000.0),
  }
  ropes = config.get('rope_parameters')
  if ropes is None:
    scaling = config.get('rope_scaling') or {}
    ropes = {'full_attention': scaling, 'sliding_attention': {}}
  full, window = (
    {'rope_parameters': {'rope_theta': theta, **(ropes[kind] or {})}}
    for kind, theta in thetas.items()
  )
  return {'rope_scaling': None, **full}, window


def _gpt2(config: Json) -> Gpt2:
  for name in ('scale_attn_by_inverse_layer_idx', 'add_cross_attention'):
    if config.get(name):
      raise ValueError(
        f'{name} in config.json must be false, got {config[name]}; no layer of'
        ' praxis computes it'
      )
  if not config.get('tie_word_embeddings', True):
    raise ValueError(
      'tie_word_embeddings in config.json of a gpt2 must be true, got false'
    )
  return Gpt2(
    vocab_size=_size(config, 'vocab_size'),
    max_positions=_size(config, 'n_positions'),
    model_dims=_size(config, 'n_embd'),
    hidden_dims=config.get('n_inner') or 4 * _size(config, 'n_embd'),
    num_layers=_size(config, 'n_layer'),
    num_heads=_size(config, 'n_head'),
    norm_epsilon=config.get('layer_norm_epsilon', 1e-5),
    activation=config.get('activation_function', 'gelu_new'),
    scales_attention=config.get('scale_attn_weights', True),
  )


def _t5(config: Json) -> T5:
  projection = config.get('feed_forward_proj', 'relu')
  gate, _, activation = projection.rpartition('-')
  if gate not in ('', 'gated'):
    raise ValueError(
      "feed_forward_proj in config.json must be 'gated-' and an activation, or"
      f' an activation, got {projection!r}'
    )
  num_layers = _size(config, 'num_layers')
  # T5 1.1 is marked by tie_word_embeddings=false, or in newer files by
  # scale_decoder_outputs=false.
  is_tied = config.get('tie_word_embeddings', True)
  return T5(
    vocab_size=_size(config, 'vocab_size'),
    model_dims=_size(config, 'd_model'),
    dim_per_head=_size(config, 'd_kv'),
    hidden_dims=_size(config, 'd_ff'),
    num_encoder_layers=num_layers,
    num_decoder_layers=config.get('num_decoder_layers') or num_layers,
    num_heads=_size(config, 'num_heads'),
    num_buckets=config.get('relative_attention_num_buckets', 32),
    max_distance=config.get('relative_attention_max_distance', 128),
    norm_epsilon=config.get('layer_norm_epsilon', 1e-6),
    # In the releases the gate's GELU is the approximation.
    activation='gelu_new' if projection == 'gated-gelu' else activation,
    is_gated=gate == 'gated',
    is_tied=is_tied,
    scales_logits=config.get('scale_decoder_outputs', is_tied),
  )


def _rotary_decoder(config: Json, **settings: Any) -> RotaryDecoder:
  num_heads = _size(config, 'num_attention_heads')
  return RotaryDecoder(
    vocab_size=_size(config, 'vocab_size'),
    model_dims=_size(config, 'hidden_size'),
    hidden_dims=_size(config, 'intermediate_size'),
    num_layers=_size(config, 'num_hidden_layers'),
    num_heads=num_heads,
    num_kv_heads=config.get('num_key_value_heads') or num_heads,
    dim_per_head=config.get('head_dim')
    or _size(config, 'hidden_size') // num_heads,
    norm_epsilon=config.get('rms_norm_eps', 1e-6),
    rope=_rope(config),
    is_tied=config.get('tie_word_embeddings', False),
    **settings,
  )


def _size(config: Json, name: str) -> int:
  """Returns a setting that is a number of something."""
  value = config[name]
  if type(value) is not int or value < 1:
    raise ValueError(
      f'{name} in config.json must be an integer at least 1, got {value!r}; use'
      ' the file that save_pretrained writes'
    )
  return value


def _rope(config: Json) -> dict[str, Any]:
  """Returns `rope_parameters`; older files have other names."""
  settings = config.get('rope_scaling') or config.get('rope_parameters') or {}
  if not isinstance(settings, Mapping):
    raise ValueError(
      'rope_scaling or rope_parameters in config.json must be an object, got'
      f' {settings!r}; use the file that save_pretrained writes'
    )
  rope = dict(settings)
  rope.setdefault('rope_theta', config.get('rope_theta', 10000.0))
  rope.setdefault('rope_type', rope.get('type', 'default'))
  rope.setdefault(
    'partial_rotary_factor', config.get('partial_rotary_factor', 1.0)
  )
  return rope


def _qwen_windows(config: Json) -> tuple[int | None, ...]:
  if not config.get('use_sliding_window', False):
    return ()
  first = config.get('max_window_layers', 28)
  kinds = config.get('layer_types') or [
    'sliding_attention' if i >= first else 'full_attention'
    for i in range(_size(config, 'num_hidden_layers'))
  ]
  return _windows(kinds, config.get('sliding_window', 4096))


def _windows(
  kinds: Collection[str], window: int | None
) -> tuple[int | None, ...]:
  """Returns the windows of layers by their `layer_types`."""
  sizes = {'sliding_attention': window, 'full_attention': None}
  if unknown := set(kinds) - sizes.keys():
    raise ValueError(
      f'layer_types in config.json must be of {sorted(sizes)}, got'
      f' {sorted(unknown)}'
    )
  return tuple(sizes[kind] for kind in kinds)


def _check_causal(config: Json) -> None:
  if config.get('use_bidirectional_attention'):
    raise ValueError(
      'use_bidirectional_attention in config.json must be false, got true; set'
      ' model_type=BIDIRECTIONAL on a model of your own'
    )


FAMILIES: Mapping[str, Family] = {
  'deepseek_v2': Family(read=_deepseek_v2),
  'deepseek_v3': Family(
    read=_deepseek_v3,
    # The module that predicts the token after the next.
    ignored=(r'.*rotary_emb\.inv_freq', r'model\.layers\.61\..*'),
  ),
  'gemma': Family(read=_gemma),
  'gemma2': Family(read=_gemma2),
  'gemma3_text': Family(read=_gemma3),
  'gpt2': Family(
    read=_gpt2,
    prefix='transformer.',
    # Causal masks, which old files have.
    ignored=(r'(.*\.)?h\.\d+\.attn\.(masked_)?bias',),
    copies={_HEAD: 'transformer.wte.weight'},
  ),
  'llama': Family(read=_llama),
  'mistral': Family(read=_mistral),
  'mixtral': Family(read=_mixtral),
  'qwen2': Family(read=_qwen2),
  'qwen3': Family(read=_qwen3),
  'qwen3_moe': Family(read=_qwen3_moe),
  't5': Family(
    read=_t5,
    ignored=(),
    copies={
      f'{side}.embed_tokens.weight': 'shared.weight'
      for side in ('encoder', 'decoder')
    },
  ),
}
