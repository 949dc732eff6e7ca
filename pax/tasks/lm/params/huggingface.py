# SPDX-License-Identifier: Apache-2.0
"""Fine-tuning of models of Hugging Face on text files.

pax --exp=tasks.lm.params.huggingface.Llama3 --set MODEL_DIR=/models/llama \
  --init_from=hf:/models/llama --job_log_dir=/tmp/pax/llama

Without MODEL_DIR a model has the sizes of the published one that its docstring
names, and a tokenizer of bytes.
"""

from __future__ import annotations

import pathlib
from typing import Any

import jax.numpy as jnp

from pax import base_experiment, experiment_registry, tasks_lib
from pax.huggingface import families, model_folder, stacked_variables
from pax.inputs import huggingface_tokenizers, tokenizers
from pax.tasks.lm import default_learners, sharding_annotations
from pax.tasks.lm.params import quickstart
from praxis import pax_fiddle
from praxis.decoding import hparams as decoding
from praxis.layers import checkpoint_policy

Config = pax_fiddle.Config
TaskConfig = Config[tasks_lib.SingleTask]

_SENTENCEPIECE_FILES = ('tokenizer.model', 'spiece.model')
_TOKENIZERS_FILE = 'tokenizer.json'


class HuggingFaceModel(base_experiment.BaseExperiment):
  """A task with the model of a config.json."""

  # Contents of config.json, by default of a published model.
  CONFIG: dict[str, Any]
  # Folder with config.json, which replaces CONFIG, and the tokenizer.
  MODEL_DIR = None
  # Dtype of the computation; variables are float32.
  FPROP_DTYPE = jnp.bfloat16
  # Mesh (replica, data, mdl); None trains one replica per device.
  ICI_MESH_SHAPE = [1, 1, 1]
  DCN_MESH_SHAPE = None
  TRAINING_OPTIMIZED_SHARDING = True
  # The learner.
  LEARNING_RATE = 1e-5
  WEIGHT_DECAY = 0.0

  def validate(self) -> None:
    """Checks the constants.

    Raises:
      ValueError: The folder has a model of another family, or its vocabulary is
        smaller than that of the tokenizer.
    """
    config, kind = self.model_config(), self.CONFIG['model_type']
    if config.get('model_type') != kind:
      raise ValueError(
        f'MODEL_DIR={self.MODEL_DIR} must have a {kind}, got a'
        f' {config.get("model_type")}; use the experiment of that family'
      )
    num_ids = self._tokenizer().Instantiate().vocab_size
    if num_ids > config['vocab_size']:
      raise ValueError(
        f'MODEL_DIR={self.MODEL_DIR} must have a tokenizer of at most'
        f' {config["vocab_size"]} ids, the vocab_size of config.json, got'
        f' {num_ids}; add the tokenizer of the model'
      )

  def model_config(self) -> dict[str, Any]:
    """Returns the contents of config.json."""
    if self.MODEL_DIR is None:
      return self.CONFIG
    return model_folder.read_config(pathlib.Path(self.MODEL_DIR))

  def task(self) -> TaskConfig:
    model_p = families.read_model(self.model_config()).model()
    model_p.set(name='huggingface_model', fprop_dtype=self.FPROP_DTYPE)
    task_p = Config(
      tasks_lib.SingleTask, name='huggingface_task', model=model_p
    )
    default_learners.set_default_adam(
      task_p, self.LEARNING_RATE, self.WEIGHT_DECAY
    )
    return task_p

  def eos_id(self) -> int:
    """Returns the id that ends a document; -1 if there is none."""
    eos_id = huggingface_tokenizers.token_id(self.model_config(), 'eos')
    return -1 if eos_id is None else eos_id

  def _tokenizer(self) -> Config[tokenizers.Tokenizer]:
    return tokenizer_of(self.MODEL_DIR)


class HuggingFaceLm(
  quickstart.TinyTraining, quickstart.PythonSource, HuggingFaceModel
):
  """A decoder, trained on text files."""

  NUM_TRAIN_STEPS = 1000
  LEARNING_RATE = HuggingFaceModel.LEARNING_RATE
  WEIGHT_DECAY = HuggingFaceModel.WEIGHT_DECAY
  ADAM_BETA2 = 0.95
  # Whether layers are a scan over stacked weights, and which activations of a
  # block are saved for the backward pass.
  USE_REPEATED_LAYER = False
  CHECKPOINT_POLICY = checkpoint_policy.AutodiffCheckpointType.SAVE_NOTHING

  def validate(self) -> None:
    # PythonSource checks the vocabulary of a tokenizer that it trains.
    HuggingFaceModel.validate(self)

  def task(self) -> TaskConfig:
    task_p = super().task()
    model_p = task_p.model
    model_p.lm_tpl.packed_input = True
    model_p.decoder_tpl = Config(
      decoding.GreedyDecoderHParams,
      fprop_for_prefix=True,
      seqlen=self.DECODE_SEQ_LEN,
      max_decode_steps=self.DECODE_SEQ_LEN // 2,
      eos_id=self.eos_id(),
    )
    if self.USE_REPEATED_LAYER:
      stacked_variables.repeat_layers(
        model_p, checkpoint_policy=self.CHECKPOINT_POLICY
      )
    if self.ICI_MESH_SHAPE is not None:
      sharding_annotations.set_sharding_annotations_v1(
        task_p,
        self.TRAINING_OPTIMIZED_SHARDING,
        self.ICI_MESH_SHAPE,
        self.DCN_MESH_SHAPE,
      )
    return task_p

  def _tokenizer(self) -> Config[tokenizers.Tokenizer]:
    return HuggingFaceModel._tokenizer(self)


@experiment_registry.register
class Llama2(HuggingFaceLm):
  """Llama 2 7B."""

  CONFIG = {
    'model_type': 'llama',
    'vocab_size': 32000,
    'hidden_size': 4096,
    'intermediate_size': 11008,
    'num_hidden_layers': 32,
    'num_attention_heads': 32,
    'rms_norm_eps': 1e-5,
    'bos_token_id': 1,
    'eos_token_id': 2,
  }


@experiment_registry.register
class Llama3(HuggingFaceLm):
  """Llama 3.2 1B."""

  CONFIG = {
    'model_type': 'llama',
    'vocab_size': 128256,
    'hidden_size': 2048,
    'intermediate_size': 8192,
    'num_hidden_layers': 16,
    'num_attention_heads': 32,
    'num_key_value_heads': 8,
    'head_dim': 64,
    'rms_norm_eps': 1e-5,
    'rope_theta': 500000.0,
    'rope_scaling': {
      'rope_type': 'llama3',
      'factor': 32.0,
      'low_freq_factor': 1.0,
      'high_freq_factor': 4.0,
      'original_max_position_embeddings': 8192,
    },
    'tie_word_embeddings': True,
    'bos_token_id': 128000,
    'eos_token_id': 128001,
  }


@experiment_registry.register
class Mistral(HuggingFaceLm):
  """Mistral 7B v0.1."""

  CONFIG = {
    'model_type': 'mistral',
    'vocab_size': 32000,
    'hidden_size': 4096,
    'intermediate_size': 14336,
    'num_hidden_layers': 32,
    'num_attention_heads': 32,
    'num_key_value_heads': 8,
    'rms_norm_eps': 1e-5,
    'sliding_window': 4096,
    'bos_token_id': 1,
    'eos_token_id': 2,
  }


@experiment_registry.register
class Qwen2(HuggingFaceLm):
  """Qwen2.5 0.5B."""

  CONFIG = {
    'model_type': 'qwen2',
    'vocab_size': 151936,
    'hidden_size': 896,
    'intermediate_size': 4864,
    'num_hidden_layers': 24,
    'num_attention_heads': 14,
    'num_key_value_heads': 2,
    'rms_norm_eps': 1e-6,
    'rope_theta': 1000000.0,
    'tie_word_embeddings': True,
    'bos_token_id': 151643,
    'eos_token_id': 151643,
  }


@experiment_registry.register
class Qwen3(HuggingFaceLm):
  """Qwen3 0.6B."""

  CONFIG = {
    'model_type': 'qwen3',
    'vocab_size': 151936,
    'hidden_size': 1024,
    'intermediate_size': 3072,
    'num_hidden_layers': 28,
    'num_attention_heads': 16,
    'num_key_value_heads': 8,
    'head_dim': 128,
    'rms_norm_eps': 1e-6,
    'rope_theta': 1000000.0,
    'tie_word_embeddings': True,
    'bos_token_id': 151643,
    'eos_token_id': 151645,
  }


@experiment_registry.register
class Gemma(HuggingFaceLm):
  """Gemma 2B."""

  CONFIG = {
    'model_type': 'gemma',
    'vocab_size': 256000,
    'hidden_size': 2048,
    'intermediate_size': 16384,
    'num_hidden_layers': 18,
    'num_attention_heads': 8,
    'num_key_value_heads': 1,
    'head_dim': 256,
    'bos_token_id': 2,
    'eos_token_id': 1,
  }


@experiment_registry.register
class Gemma2(HuggingFaceLm):
  """Gemma 2 2B."""

  CONFIG = {
    'model_type': 'gemma2',
    'vocab_size': 256000,
    'hidden_size': 2304,
    'intermediate_size': 9216,
    'num_hidden_layers': 26,
    'num_attention_heads': 8,
    'num_key_value_heads': 4,
    'head_dim': 256,
    'query_pre_attn_scalar': 256,
    'sliding_window': 4096,
    'attn_logit_softcapping': 50.0,
    'final_logit_softcapping': 30.0,
    'bos_token_id': 2,
    'eos_token_id': 1,
  }


@experiment_registry.register
class Gpt2(HuggingFaceLm):
  """GPT-2 with 124M parameters."""

  CONFIG = {
    'model_type': 'gpt2',
    'vocab_size': 50257,
    'n_positions': 1024,
    'n_embd': 768,
    'n_layer': 12,
    'n_head': 12,
    'bos_token_id': 50256,
    'eos_token_id': 50256,
  }


def tokenizer_of(folder: str | None) -> Config[tokenizers.Tokenizer]:
  """Returns the Config of the tokenizer of a model.

  Args:
    folder: Its folder. Without one, or without a tokenizer in it, tokens are
      bytes.
  """
  if folder is None:
    return Config(tokenizers.ByteTokenizer)
  for name in _SENTENCEPIECE_FILES:
    file = pathlib.Path(folder, name)
    if file.exists():
      return Config(tokenizers.SentencePieceTokenizer, model_file=str(file))
  if pathlib.Path(folder, _TOKENIZERS_FILE).exists():
    return Config(
      huggingface_tokenizers.HuggingFaceTokenizer, folder=str(folder)
    )
  return Config(tokenizers.ByteTokenizer)
