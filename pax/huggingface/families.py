# SPDX-License-Identifier: Apache-2.0
"""Families of models by the `model_type` of config.json.

A family reads the settings of a model from its config.json. Absent values have
the defaults of transformers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Protocol

from pax.huggingface import (
  config_settings,
  deepseek,
  exaone,
  fused_decoders,
  glm,
  gpt_oss,
  granite,
  layer_norms,
  llama4,
  minimax,
  ministral,
  mtp_modules,
  multimodal,
  olmo,
  qwen3_5,
  qwen3_next,
  seed_oss,
  smollm,
  weight_layouts,
)
from pax.huggingface.config_settings import Json
from pax.huggingface.gpt2 import Gpt2
from pax.huggingface.mixture_of_experts import ExpertTensors
from pax.huggingface.mtp_modules import MtpModules
from pax.huggingface.rotary_decoder import RotaryDecoder
from pax.huggingface.t5 import T5
from pax.huggingface.weight_layouts import WeightLayout
from praxis import base_layer, pax_fiddle

# Weights of the embedding and of the softmax.
_EMBEDDING = 'model.embed_tokens.weight'
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
  # Returns config.json with what the names of tensors in files add to it; None:
  # nothing.
  with_names: Callable[[Json, Collection[str]], Json] | None = None
  # Prefix of the names of tensors, which files of the network without its head
  # leave out.
  prefix: str = 'model.'
  # Regexes of tensors that are no weights but tables.
  ignored: tuple[str, ...] = (r'.*rotary_emb\.inv_freq',)
  # Tensors that are copies of tied weights, where they are no weights, and the
  # tensors of those.
  copies: Mapping[str, str] = dataclasses.field(
    default_factory=lambda: {_HEAD: _EMBEDDING}
  )
  # Those that new files have, too.
  new_copies: Collection[str] = ()
  # Whether matrices are [inputs, outputs], not [outputs, inputs].
  stores_inputs_first: bool = False
  # Whether the model is a part of one of images and texts.
  is_part: bool = False

  def names_in_files(self, tensor: str) -> list[str]:
    """Returns the names that a tensor may have in files.

    Args:
      tensor: Its name in a whole model.
    """
    names = [tensor, tensor.removeprefix(self.prefix)]
    return names + (multimodal.tensor_names(tensor) if self.is_part else [])


def read_model(
  config: Json,
  *,
  has_mtp: bool = False,
  names: Collection[str] | None = None,
) -> Model:
  """Returns the model of a config.json.

  Args:
    config: Contents of config.json.
    has_mtp: Whether the model has its modules of multi-token prediction.
    names: Names of the tensors in its files; None: those that transformers
      writes.

  Raises:
    ValueError: The family or a setting of it is not supported, or it has no
      such modules.
  """
  family = find_family(config)
  config = multimodal.language_config(config)
  if names is not None and family.with_names is not None:
    config = family.with_names(config, names)
  if not has_mtp:
    config = mtp_modules.without_modules(config)
  elif not MtpModules.read(config).sources:
    raise ValueError(
      'num_nextn_predict_layers in config.json must be at least 1 for'
      ' multi-token prediction, got none; set MTP_LOSS_WEIGHT=0.0'
    )
  try:
    return family.read(config)
  except KeyError as e:
    raise ValueError(
      f'config.json of a {config["model_type"]} must have {e}, got'
      f' {sorted(config)}; use the file that save_pretrained writes'
    ) from e


def find_family(config: Json, *, has_mtp: bool = False) -> Family:
  """Returns the family of a config.json.

  Args:
    config: Contents of config.json.
    has_mtp: Whether its modules of multi-token prediction are not ignored.

  Raises:
    ValueError: It is not supported.
  """
  part = multimodal.language_config(config)
  name = part.get('model_type')
  if not isinstance(name, str) or name not in FAMILIES:
    known = sorted({*FAMILIES, *multimodal.MODEL_TYPES})
    raise ValueError(
      f'model_type in config.json must be one of {known}, got {name!r}; only'
      ' these families have a mapping of their weights'
    )
  family, modules = FAMILIES[name], MtpModules.read(part)
  if part is not config:
    ignored = (*family.ignored, multimodal.IGNORED)
    family = dataclasses.replace(family, is_part=True, ignored=ignored)
  if not has_mtp:
    ignored = (*family.ignored, *modules.patterns)
    return dataclasses.replace(family, ignored=ignored)
  head = _EMBEDDING if part.get('tie_word_embeddings') else _HEAD
  copies = modules.copies(_EMBEDDING, head)
  return dataclasses.replace(
    family, copies={**family.copies, **copies}, new_copies=tuple(copies)
  )


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
    in_files = [x for x in family.names_in_files(tensor) if x in names]
    if not in_files:
      raise ValueError(
        f'the safetensors files must have {tensor}, got {len(names)}'
        f' tensors such as {sorted(names)[:3]}; config.json and the files'
        ' must be of one model'
      )
    tensors[in_files[0]] = layouts
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
    for copy, tensor in family.copies.items()
    for name in family.names_in_files(copy)
    if name in names and name not in layouts
  }


def _llama(config: Json) -> RotaryDecoder:
  has_bias = config.get('attention_bias', False)
  return config_settings.rotary_decoder(
    config,
    activation=config.get('hidden_act', 'silu'),
    has_qkv_bias=has_bias,
    has_output_bias=has_bias,
    has_ffn_bias=config.get('mlp_bias', False),
  )


def _mistral(config: Json) -> RotaryDecoder:
  window = config.get('sliding_window', 4096)
  return config_settings.rotary_decoder(
    config,
    activation=config.get('hidden_act', 'silu'),
    windows=(window,) * config_settings.size(config, 'num_hidden_layers'),
  )


def _mixtral(config: Json) -> RotaryDecoder:
  if config.get('router_jitter_noise'):
    raise ValueError(
      'router_jitter_noise in config.json must be 0, got'
      f' {config["router_jitter_noise"]}; no layer of praxis adds it'
    )
  num_layers = config_settings.size(config, 'num_hidden_layers')
  return config_settings.rotary_decoder(
    {'num_key_value_heads': 8, 'rms_norm_eps': 1e-5, **config},
    activation=config.get('hidden_act', 'silu'),
    windows=(config.get('sliding_window'),) * num_layers,
    experts=config_settings.experts(
      {'num_local_experts': 8, 'num_experts_per_tok': 2, **config},
      hidden_dims=config_settings.size(config, 'intermediate_size'),
      layers=tuple(range(num_layers)),
      normalize_gates=True,
      tensors=ExpertTensors(
        mixture='block_sparse_moe', gate='w1', up='w3', down='w2'
      ),
    ),
  )


def _qwen2(config: Json) -> RotaryDecoder:
  return config_settings.rotary_decoder(
    config,
    activation=config.get('hidden_act', 'silu'),
    has_qkv_bias=True,
    windows=_qwen_windows(config),
  )


def _qwen3(config: Json) -> RotaryDecoder:
  has_bias = config.get('attention_bias', False)
  return config_settings.rotary_decoder(
    {'head_dim': 128, **config},
    activation=config.get('hidden_act', 'silu'),
    has_qkv_bias=has_bias,
    has_output_bias=has_bias,
    has_head_norms=True,
    windows=_qwen_windows(config),
  )


def _qwen3_moe(config: Json) -> RotaryDecoder:
  num_layers = config_settings.size(config, 'num_hidden_layers')
  window = config.get('sliding_window', 4096)
  is_windowed = config.get('use_sliding_window', False)
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
    experts=config_settings.experts(
      {'num_experts': 128, 'num_experts_per_tok': 8, **config},
      hidden_dims=config.get('moe_intermediate_size', 768),
      layers=config_settings.expert_layers(config),
      normalize_gates=config.get('norm_topk_prob', False),
      tensors=ExpertTensors(
        mixture='mlp', gate='gate_proj', up='up_proj', down='down_proj'
      ),
    ),
  )


def _gemma(config: Json) -> RotaryDecoder:
  _check_causal(config)
  has_bias = config.get('attention_bias', False)
  # Files of the first release name the exact GELU, and mean the approximation.
  activation = config.get('hidden_activation') or config.get('hidden_act')
  if activation in (None, 'gelu'):
    activation = 'gelu_pytorch_tanh'
  return config_settings.rotary_decoder(
    {'head_dim': 256, 'tie_word_embeddings': True, **config},
    activation=activation,
    has_qkv_bias=has_bias,
    has_output_bias=has_bias,
    scales_embedding=True,
    has_offset_norms=True,
  )


def _gemma2(config: Json) -> RotaryDecoder:
  gemma = _gemma({'num_key_value_heads': 4, **config})
  num_layers = config_settings.size(config, 'num_hidden_layers')
  kinds = config.get('layer_types') or [
    'full_attention' if i % 2 else 'sliding_attention'
    for i in range(num_layers)
  ]
  return dataclasses.replace(
    gemma,
    activation=config.get('hidden_activation', 'gelu_pytorch_tanh'),
    norms=layer_norms.INPUTS_AND_OUTPUTS,
    windows=config_settings.windows(kinds, config.get('sliding_window', 4096)),
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
    for i in range(config_settings.size(config, 'num_hidden_layers'))
  ]
  rope, window_rope = config_settings.ropes_by_layer_type(
    config,
    {
      'full_attention': config.get('rope_theta', 1_000_000.0),
      'sliding_attention': config.get('rope_local_base_freq', 10_000.0),
    },
  )
  gemma = _gemma({'num_key_value_heads': 4, **config, **rope})
  return dataclasses.replace(
    gemma,
    activation=config.get('hidden_activation', 'gelu_pytorch_tanh'),
    has_head_norms=True,
    norms=layer_norms.INPUTS_AND_OUTPUTS,
    windows=config_settings.windows(kinds, window),
    window_rope=config_settings.rope(window_rope),
    query_scale=config.get('query_pre_attn_scalar', 256) ** -0.5,
    attention_logit_cap=config.get('attn_logit_softcapping'),
    logit_cap=config.get('final_logit_softcapping'),
  )


def _gpt_oss(config: Json) -> RotaryDecoder:
  config = gpt_oss.with_defaults(config)
  has_bias = config['attention_bias']
  mixture = config_settings.experts(
    config,
    hidden_dims=config_settings.size(config, 'intermediate_size'),
    layers=tuple(range(config_settings.size(config, 'num_hidden_layers'))),
    normalize_gates=True,
    tensors=ExpertTensors(
      mixture='mlp', gate='gate_up_proj', up='gate_up_proj', down='down_proj'
    ),
  )
  return config_settings.rotary_decoder(
    config,
    # No layer has it: all have experts.
    activation='silu',
    has_qkv_bias=has_bias,
    has_output_bias=has_bias,
    has_sinks=True,
    windows=config_settings.windows(
      config['layer_types'], config['sliding_window']
    ),
    experts=gpt_oss.GptOssExperts(
      mixture=mixture,
      slope=config['swiglu_alpha'],
      limit=config['swiglu_limit'],
    ),
  )


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
    vocab_size=config_settings.size(config, 'vocab_size'),
    max_positions=config_settings.size(config, 'n_positions'),
    model_dims=config_settings.size(config, 'n_embd'),
    hidden_dims=config.get('n_inner')
    or 4 * config_settings.size(config, 'n_embd'),
    num_layers=config_settings.size(config, 'n_layer'),
    num_heads=config_settings.size(config, 'n_head'),
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
  num_layers = config_settings.size(config, 'num_layers')
  # T5 1.1 is marked by tie_word_embeddings=false, or in newer files by
  # scale_decoder_outputs=false.
  is_tied = config.get('tie_word_embeddings', True)
  return T5(
    vocab_size=config_settings.size(config, 'vocab_size'),
    model_dims=config_settings.size(config, 'd_model'),
    dim_per_head=config_settings.size(config, 'd_kv'),
    hidden_dims=config_settings.size(config, 'd_ff'),
    num_encoder_layers=num_layers,
    num_decoder_layers=config.get('num_decoder_layers') or num_layers,
    num_heads=config_settings.size(config, 'num_heads'),
    num_buckets=config.get('relative_attention_num_buckets', 32),
    max_distance=config.get('relative_attention_max_distance', 128),
    norm_epsilon=config.get('layer_norm_epsilon', 1e-6),
    # In the releases the gate's GELU is the approximation.
    activation='gelu_new' if projection == 'gated-gelu' else activation,
    is_gated=gate == 'gated',
    is_tied=is_tied,
    scales_logits=config.get('scale_decoder_outputs', is_tied),
  )


def _qwen_windows(config: Json) -> tuple[int | None, ...]:
  if not config.get('use_sliding_window', False):
    return ()
  first = config.get('max_window_layers', 28)
  kinds = config.get('layer_types') or [
    'sliding_attention' if i >= first else 'full_attention'
    for i in range(config_settings.size(config, 'num_hidden_layers'))
  ]
  return config_settings.windows(kinds, config.get('sliding_window', 4096))


def _check_causal(config: Json) -> None:
  if config.get('use_bidirectional_attention'):
    raise ValueError(
      'use_bidirectional_attention in config.json must be false, got true; set'
      ' model_type=BIDIRECTIONAL on a model of your own'
    )


# Modules of multi-token prediction that transformers ignores, too.
_WITHOUT_MTP = (*Family.ignored, r'mtp\..*')
FAMILIES: Mapping[str, Family] = {
  'deepseek_v2': Family(read=deepseek.read_v2),
  'deepseek_v3': Family(read=deepseek.read_v3),
  'exaone4': Family(read=exaone.read_exaone4),
  'gemma': Family(read=_gemma),
  'gemma2': Family(read=_gemma2),
  'gemma3_text': Family(read=_gemma3),
  'glm4': Family(read=fused_decoders.read_glm4),
  'glm4_moe': Family(read=glm.read_glm4_moe),
  'glm4_moe_lite': Family(read=glm.read_glm4_moe_lite),
  'gpt2': Family(
    read=_gpt2,
    prefix='transformer.',
    # Causal masks, which old files have.
    ignored=(r'(.*\.)?h\.\d+\.attn\.(masked_)?bias',),
    copies={_HEAD: 'transformer.wte.weight'},
    stores_inputs_first=True,
  ),
  'gpt_oss': Family(read=_gpt_oss),
  'granite': Family(read=granite.read),
  # The architecture of DeepSeek-V3.
  'kimi_k2': Family(read=deepseek.read_v3),
  'llama': Family(read=_llama),
  'llama4_text': Family(read=llama4.read_text),
  'minimax_m2': Family(read=minimax.read_m2),
  'ministral3': Family(read=ministral.read_ministral3),
  'mistral': Family(read=_mistral),
  'mixtral': Family(read=_mixtral),
  'olmo2': Family(read=olmo.read_olmo2),
  'olmo3': Family(read=olmo.read_olmo3),
  'phi3': Family(read=fused_decoders.read_phi3),
  'qwen2': Family(read=_qwen2),
  'qwen3': Family(read=_qwen3),
  'qwen3_moe': Family(read=_qwen3_moe),
  'qwen3_next': Family(read=qwen3_next.read, ignored=_WITHOUT_MTP),
  'qwen3_5_text': Family(read=qwen3_5.read, ignored=_WITHOUT_MTP),
  'qwen3_5_moe_text': Family(
    read=qwen3_5.read_moe, with_names=qwen3_5.with_names, ignored=_WITHOUT_MTP
  ),
  'seed_oss': Family(read=seed_oss.read),
  'smollm3': Family(read=smollm.read_smollm3),
  't5': Family(
    read=_t5,
    ignored=(),
    copies={
      f'{side}.embed_tokens.weight': 'shared.weight'
      for side in ('encoder', 'decoder')
    },
  ),
}
