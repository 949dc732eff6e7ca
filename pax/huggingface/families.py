# SPDX-License-Identifier: Apache-2.0
"""Families of models by the `model_type` of config.json.

A family reads the settings of a model from its config.json. Absent values have
the defaults of transformers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Protocol

from pax.huggingface import multimodal, weight_layouts
from pax.huggingface.layers import mtp_modules
from pax.huggingface.layers.mtp_modules import MtpModules
from pax.huggingface.models import (
  deepseek,
  exaone,
  gemma,
  gemma4,
  glm,
  gpt2,
  gpt_oss,
  granite,
  llama,
  llama4,
  minimax,
  mistral,
  nemotron_h,
  olmo,
  phi,
  qwen,
  qwen3_5,
  qwen3_next,
  seed_oss,
  smollm,
  t5,
)
from pax.huggingface.models.config_settings import Json
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


# Modules of multi-token prediction that transformers ignores, too.
_WITHOUT_MTP = (*Family.ignored, r'mtp\..*')
FAMILIES: Mapping[str, Family] = {
  'deepseek_v2': Family(read=deepseek.read_deepseek_v2),
  'deepseek_v3': Family(read=deepseek.read_deepseek_v3),
  'exaone4': Family(read=exaone.read_exaone4),
  'gemma': Family(read=gemma.read_gemma),
  'gemma2': Family(read=gemma.read_gemma2),
  'gemma3_text': Family(read=gemma.read_gemma3),
  'gemma4_text': Family(
    read=gemma4.read_gemma4,
    # Files may have those of layers that share the keys of others.
    ignored=(
      *Family.ignored,
      r'.*\.self_attn\.(k_proj|v_proj|k_norm)\.weight',
    ),
  ),
  'gemma4_unified_text': Family(read=gemma4.read_gemma4_unified),
  'glm4': Family(read=glm.read_glm4),
  'glm4_moe': Family(read=glm.read_glm4_moe),
  'glm4_moe_lite': Family(read=glm.read_glm4_moe_lite),
  'gpt2': Family(
    read=gpt2.read_gpt2,
    prefix='transformer.',
    # Causal masks, which old files have.
    ignored=(r'(.*\.)?h\.\d+\.attn\.(masked_)?bias',),
    copies={_HEAD: 'transformer.wte.weight'},
    stores_inputs_first=True,
  ),
  'gpt_oss': Family(read=gpt_oss.read_gpt_oss),
  'granite': Family(read=granite.read_granite),
  'granitemoehybrid': Family(read=granite.read_granite_hybrid),
  # The architecture of DeepSeek-V3.
  'kimi_k2': Family(read=deepseek.read_deepseek_v3),
  'llama': Family(read=llama.read_llama),
  'llama4_text': Family(read=llama4.read_llama4),
  'minimax_m2': Family(read=minimax.read_minimax_m2),
  'ministral3': Family(read=mistral.read_ministral3),
  'mistral': Family(read=mistral.read_mistral),
  'mixtral': Family(read=mistral.read_mixtral),
  'nemotron_h': Family(
    read=nemotron_h.read_nemotron_h,
    prefix='backbone.',
    ignored=_WITHOUT_MTP,
    copies={_HEAD: 'backbone.embeddings.weight'},
  ),
  'olmo2': Family(read=olmo.read_olmo2),
  'olmo3': Family(read=olmo.read_olmo3),
  'phi3': Family(read=phi.read_phi3),
  'qwen2': Family(read=qwen.read_qwen2),
  'qwen3': Family(read=qwen.read_qwen3),
  'qwen3_moe': Family(read=qwen.read_qwen3_moe),
  'qwen3_next': Family(read=qwen3_next.read_qwen3_next, ignored=_WITHOUT_MTP),
  'qwen3_5_text': Family(read=qwen3_5.read_qwen3_5, ignored=_WITHOUT_MTP),
  'qwen3_5_moe_text': Family(
    read=qwen3_5.read_qwen3_5_moe,
    with_names=qwen3_5.with_names,
    ignored=_WITHOUT_MTP,
  ),
  'seed_oss': Family(read=seed_oss.read_seed_oss),
  'smollm3': Family(read=smollm.read_smollm3),
  't5': Family(
    read=t5.read_t5,
    ignored=(),
    copies={
      f'{side}.embed_tokens.weight': 'shared.weight'
      for side in ('encoder', 'decoder')
    },
  ),
}
