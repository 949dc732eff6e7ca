# SPDX-License-Identifier: Apache-2.0
"""Language models that are parts of models of images, against transformers."""

from __future__ import annotations

import numpy as np
import peft
import pytest
import torch
import transformers

from pax.huggingface import (
  conversion,
  families,
  model_folder,
  multimodal,
  peft_adapters,
  weight_layouts,
)
from tests.compare import model_parts
from tests.pax.huggingface import loaded_models, reference_models

# What its packages warn of is theirs.
pytestmark = pytest.mark.filterwarnings('ignore')

_TEXT = dict(
  vocab_size=61,
  hidden_size=32,
  intermediate_size=48,
  num_hidden_layers=4,
  num_attention_heads=4,
  num_key_value_heads=2,
  head_dim=8,
)
_VISION = dict(
  hidden_size=16,
  intermediate_size=16,
  num_hidden_layers=1,
  num_attention_heads=2,
  image_size=16,
  patch_size=8,
)
_DELTA_NETS = {
  **model_parts.DELTA_NETS,
  'layer_types': ['linear_attention', 'full_attention'] * 2,
}
_QWEN_VISION = {
  'depth': 1,
  'num_heads': 2,
  'out_hidden_size': 32,
  'num_position_embeddings': 4,
}
_GEMMA_4 = {
  **model_parts.GEMMA_4,
  'num_global_key_value_heads': 1,
  'layer_types': ['sliding_attention', 'full_attention'] * 2,
}
_MODELS = {
  'gemma3': (
    transformers.Gemma3Config,
    transformers.Gemma3ForConditionalGeneration,
    {'sliding_window': 4},
    {},
  ),
  'gemma4': (
    transformers.Gemma4Config,
    transformers.Gemma4ForConditionalGeneration,
    {**_GEMMA_4, **model_parts.NO_LAYER_INPUTS},
    {'num_key_value_heads': 2, 'head_dim': 8},
  ),
  'gemma4_e2b': (
    transformers.Gemma4Config,
    transformers.Gemma4ForConditionalGeneration,
    {
      **_GEMMA_4,
      'attention_k_eq_v': False,
      'num_kv_shared_layers': 2,
      'hidden_size_per_layer_input': 6,
      'vocab_size_per_layer_input': 61,
    },
    {'num_key_value_heads': 2, 'head_dim': 8},
  ),
  'gemma4_unified': (
    transformers.Gemma4UnifiedConfig,
    transformers.Gemma4UnifiedForConditionalGeneration,
    _GEMMA_4,
    {'mm_embed_dim': 16, 'output_proj_dims': 16},
  ),
  'mistral3': (
    transformers.Mistral3Config,
    transformers.Mistral3ForConditionalGeneration,
    {'model_type': 'mistral', 'sliding_window': None},
    {'model_type': 'pixtral', 'head_dim': 8},
  ),
  'ministral3': (
    transformers.Mistral3Config,
    transformers.Mistral3ForConditionalGeneration,
    {
      'model_type': 'ministral3',
      'rope_parameters': {
        'rope_type': 'yarn',
        'rope_theta': 100.0,
        'factor': 4.0,
        'original_max_position_embeddings': 4,
        'llama_4_scaling_beta': 0.5,
      },
    },
    {'model_type': 'pixtral', 'head_dim': 8},
  ),
  'qwen3_5': (
    transformers.Qwen3_5Config,
    transformers.Qwen3_5ForConditionalGeneration,
    _DELTA_NETS,
    _QWEN_VISION,
  ),
  'qwen3_5_moe': (
    transformers.Qwen3_5MoeConfig,
    transformers.Qwen3_5MoeForConditionalGeneration,
    {**_DELTA_NETS, **model_parts.DELTA_NET_EXPERTS},
    _QWEN_VISION,
  ),
  'llama4': (
    transformers.Llama4Config,
    transformers.Llama4ForConditionalGeneration,
    {'intermediate_size_mlp': 40, 'num_local_experts': 2},
    {
      'vision_output_dim': 16,
      'projector_input_dim': 16,
      'projector_output_dim': 16,
    },
  ),
}


def _make_model(name, **settings):
  make_config, cls, text, vision = _MODELS[name]
  config = make_config(
    text_config={**_TEXT, **text},
    vision_config={**_VISION, **vision},
    **settings,
  )
  torch.manual_seed(0)
  model = cls(config).eval()
  with torch.no_grad():
    for parameter in model.parameters():
      parameter.add_(0.2 * torch.randn_like(parameter))
  return model


def _logits(model, ids):
  if isinstance(model, transformers.Llama4ForConditionalGeneration):
    # The whole needs images.
    model = model.language_model
  with torch.no_grad():
    return model(torch.tensor(ids).long()).logits.numpy()


@pytest.mark.parametrize(
  'name, settings',
  [(name, {}) for name in _MODELS]
  + [('mistral3', {'tie_word_embeddings': False})],
)
def test_texts_have_the_logits_of_transformers(name, settings, tmp_path):
  source, job, output = (tmp_path / x for x in ('source', 'job', 'output'))
  model = _make_model(name, **settings)
  model.save_pretrained(source)
  ours = loaded_models.LoadedModel(model_folder.ModelFolder.open(source))
  ids = reference_models.input_ids(61)
  np.testing.assert_allclose(
    np.asarray(ours.logits(ids)), _logits(model, ids), rtol=0, atol=1e-4
  )
  conversion.to_pax(source, job)
  conversion.to_huggingface(job, output)
  file = 'model.safetensors'
  assert (output / file).read_bytes() == (source / file).read_bytes()
  loaded = type(model).from_pretrained(output).eval()
  np.testing.assert_array_equal(_logits(loaded, ids), _logits(model, ids))


def test_an_adapter_of_the_whole_is_read_and_written(tmp_path):
  model = _make_model('gemma3')
  base, first, second = (tmp_path / x for x in ('base', 'first', 'second'))
  model.save_pretrained(base)
  lora = peft.LoraConfig(
    r=2,
    # Not the layers of images.
    target_modules=r'.*language_model.*\.(q_proj|down_proj)',
    init_lora_weights=False,
  )
  adapted = peft.get_peft_model(model, lora)
  adapted.save_pretrained(first)
  modules = peft_adapters.read(first)
  names = {x.rpartition('.')[2] for x in modules}
  assert names == {'q_proj', 'down_proj'}
  config = model_folder.read_config(base)
  family = families.find_family(config)
  layouts = weight_layouts.by_tensor(families.read_model(config).weights())
  whole = {multimodal.module_name(name): x for name, x in modules.items()}
  second.mkdir()
  peft_adapters.write(
    second, whole, peft_adapters.make_config(whole, layouts, family, config)
  )
  ids = reference_models.input_ids(61)
  want = _logits(adapted, ids)
  fresh = transformers.Gemma3ForConditionalGeneration.from_pretrained(base)
  plain = _logits(fresh.eval(), ids)
  assert np.abs(want - plain).max() > 0.01
  loaded = peft.PeftModel.from_pretrained(fresh, second).eval()
  np.testing.assert_allclose(_logits(loaded, ids), want, atol=1e-5)
