# SPDX-License-Identifier: Apache-2.0
"""Training of models in folders of Hugging Face."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from absl import logging

from pax import base_experiment, generation_runner, tasks_lib
from pax.huggingface import (
  families,
  model_folder,
  multimodal,
  peft_adapters,
)
from pax.inputs.tokens import chat_templates, huggingface_tokenizers, tokenizers
from pax.tasks.lm import (
  default_learners,
  low_rank_tasks,
  sharding_annotations,
)
from pax.tasks.lm.params import quickstart
from praxis import base_layer, pax_fiddle
from praxis.decoding import hparams as decoding
from praxis.layers import checkpoint_policy

Config = pax_fiddle.Config
TaskConfig = Config[tasks_lib.SingleTask]

_SENTENCEPIECE_FILES = ('tokenizer.model', 'spiece.model')
_TOKENIZERS_FILE = 'tokenizer.json'
_TOKENIZER_FILES = (
  *_SENTENCEPIECE_FILES,
  _TOKENIZERS_FILE,
  'added_tokens.json',
  'merges.txt',
  'special_tokens_map.json',
  'tokenizer_config.json',
  'vocab.json',
  'vocab.txt',
)
# What a folder has for generation.
_GENERATION_FILES = (
  model_folder.GENERATION_CONFIG_FILE,
  'chat_template.jinja',
  'chat_template.json',
)
_BYTES = Config(tokenizers.ByteTokenizer)


class HuggingFaceModel(base_experiment.BaseExperiment):
  """A task with the model of a config.json."""

  # Contents of config.json, by default of a published model.
  CONFIG: dict[str, Any]
  # Folder with config.json, which replaces CONFIG, and the tokenizer.
  MODEL_DIR: str | None = None
  # Dtype of the computation; variables that learn are float32.
  FPROP_DTYPE = jnp.bfloat16
  # Mesh (replica, data, mdl); None trains one replica per device.
  # USE_EXPERT_PARALLEL adds an axis data_expert before mdl, which shards the
  # experts and the batch.
  ICI_MESH_SHAPE = [1, 1, 1]
  DCN_MESH_SHAPE: Sequence[int] | None = None
  USE_EXPERT_PARALLEL = False
  TRAINING_OPTIMIZED_SHARDING = True
  # Mesh axes over which weights are gathered before they decode, not for each
  # token; (): weights stay sharded.
  DECODE_GATHERED_AXES: Sequence[str] = ('data',)
  # The learner: Adam, and the weight decay of AdamW for matrices and
  # embeddings, not for norms and biases.
  LEARNING_RATE = 1e-5
  WEIGHT_DECAY = 0.0
  # Rank of low-rank updates of weights (LoRA, arXiv:2106.09685), which alone
  # learn, with about 10 times the learning rate; 0: all variables learn.
  # LORA_ALPHA divided by the rank is their factor, LORA_DROPOUT the probability
  # that an input of one is dropped in training. The layers that have them,
  # 'attention', 'mlp' or 'all'.
  LORA_RANK = 0
  LORA_ALPHA = 32.0
  LORA_DROPOUT = 0.0
  # Whether the norms of the outputs of updated weights learn, too (DoRA,
  # arXiv:2402.09353).
  LORA_USE_DORA = False
  LORA_TARGET_LAYERS = 'all'
  # A folder of PEFT with the updates to begin with, whose factors replace that
  # of LORA_ALPHA; None: they begin anew.
  LORA_ADAPTER_DIR: str | None = None
  # Weight of the loss of the modules of multi-token prediction in the folder,
  # 0.3 and in the end 0.1 for DeepSeek-V3; 0: without them.
  MTP_LOSS_WEIGHT = 0.0

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
    tokenizer_p = self._tokenizer()
    is_named = getattr(self, 'TOKENIZER', None) is not None
    if self.MODEL_DIR and not is_named and tokenizer_p == _BYTES:
      logging.warning(
        'MODEL_DIR=%s has no tokenizer: tokens are bytes, unlike those that a'
        ' published model has learned; add its tokenizer.json or'
        ' tokenizer.model',
        self.MODEL_DIR,
      )
    num_ids = tokenizer_p.Instantiate().vocab_size
    if num_ids > config['vocab_size']:
      raise ValueError(
        f'the tokenizer must have at most {config["vocab_size"]} ids, the'
        f' vocab_size of config.json of MODEL_DIR={self.MODEL_DIR}, got'
        f' {num_ids}; use the tokenizer of the model'
      )
    if self.LORA_ADAPTER_DIR is not None:
      self._check_adapter(pathlib.Path(self.LORA_ADAPTER_DIR))

  def _check_adapter(self, folder: pathlib.Path) -> None:
    config = peft_adapters.read_config(folder)
    if config.get('use_dora') and not self.LORA_USE_DORA:
      raise ValueError(
        f'LORA_USE_DORA must be True for LORA_ADAPTER_DIR={folder}, whose'
        ' adapter_config.json has use_dora, got False; set it'
      )
    if not self.LORA_RANK or self.MODEL_DIR is None:
      raise ValueError(
        f'LORA_ADAPTER_DIR={folder} needs LORA_RANK > 0 and MODEL_DIR, got'
        f' LORA_RANK={self.LORA_RANK} and MODEL_DIR={self.MODEL_DIR}; set both'
        ' to those of the adapter'
      )

  def model_config(self) -> dict[str, Any]:
    """Returns the contents of config.json, those of the language model."""
    if self.MODEL_DIR is None:
      return self.CONFIG
    config = model_folder.read_config(pathlib.Path(self.MODEL_DIR))
    return dict(multimodal.language_config(config))

  def task(self) -> TaskConfig:
    has_mtp = self.MTP_LOSS_WEIGHT != 0.0
    model = families.read_model(self.model_config(), has_mtp=has_mtp)
    model_p = model.model()
    if has_mtp:
      model_p.lm_tpl.mtp_tpl.loss_weight = self.MTP_LOSS_WEIGHT
    self._set_layers(model_p)
    model_p.set(name='huggingface_model', fprop_dtype=self.FPROP_DTYPE)
    task_p = Config(
      tasks_lib.SingleTask, name='huggingface_task', model=model_p
    )
    default_learners.set_default_adam(
      task_p, self.LEARNING_RATE, self.WEIGHT_DECAY
    )
    return task_p

  def export_files(self) -> Mapping[str, str | pathlib.Path]:
    """Returns config.json, and the files of the tokenizer if it has any.

    Raises:
      ValueError: CONFIG has a value that JSON has not.
    """
    try:
      config = json.dumps(self.model_config(), indent=2) + '\n'
    except TypeError as e:
      raise ValueError(
        'CONFIG must have values of JSON, as a config.json, got others:'
        f' {e}; write dtypes by their names, and numbers as those of Python'
      ) from e
    tokenizer_p = self._tokenizer()
    if tokenizer_p == tokenizer_of(self.MODEL_DIR):
      tokenizer_files = _files_in(self.MODEL_DIR, _TOKENIZER_FILES)
    else:
      tokenizer_files = _files_of(tokenizer_p)
    return {
      model_folder.CONFIG_FILE: config,
      **_files_in(self.MODEL_DIR, _GENERATION_FILES),
      **tokenizer_files,
    }

  def eos_ids(self) -> list[int]:
    """Returns the ids that end a decoded text; [-1] if there are none."""
    folder = pathlib.Path(self.MODEL_DIR or '')
    return model_folder.read_eos_ids(folder, self.model_config()) or [-1]

  def _set_layers(self, model_p: Config[base_layer.BaseLayer]) -> None:
    """Sets fields of layers that are not in config.json; a hook."""

  def _tokenizer(self) -> Config[tokenizers.Tokenizer]:
    return tokenizer_of(self.MODEL_DIR)

  def _chat_template(self) -> Config[chat_templates.ChatTemplate] | None:
    """Returns the template of MODEL_DIR, which may lack one."""
    if self.MODEL_DIR is None:
      return None
    return Config(chat_templates.ChatTemplate, folder=self.MODEL_DIR)


class FineTuning(quickstart.TinyTraining, HuggingFaceModel):
  """Training, evaluation and greedy decoding of a model."""

  NUM_TRAIN_STEPS = 1000
  LEARNING_RATE = HuggingFaceModel.LEARNING_RATE
  WEIGHT_DECAY = HuggingFaceModel.WEIGHT_DECAY
  ADAM_BETA2 = 0.95
  # Which activations of a layer, or of a block of repeated layers, are saved
  # for the backward pass.
  CHECKPOINT_POLICY = checkpoint_policy.AutodiffCheckpointType.SAVE_NOTHING
  # Number of prompts in a batch of --mode=decode, decode_once and infer.
  DECODE_BATCH_SIZE = 8

  def task(self) -> TaskConfig:
    task_p = super().task()
    default_learners.set_matrix_decay(task_p, self.WEIGHT_DECAY)
    task_p.model.decoder_tpl = self._decoder()
    task_p.infer_writer = Config(
      tasks_lib.SingleTask.InferWriter,
      inference_runner=Config(
        generation_runner.GenerationRunner, tokenizer=self._tokenizer()
      ),
      output_num_shards=1,
    )
    return task_p

  def _decoder(self) -> Config[decoding.DecoderHParams]:
    raise NotImplementedError(type(self).__name__)

  def _rematerialize(self, stack_p: Config[base_layer.BaseLayer]) -> None:
    stack_p.set(remat=True, checkpoint_policy=self.CHECKPOINT_POLICY)

  def _add_low_rank_updates(self, task_p: TaskConfig) -> None:
    if self.LORA_RANK:
      low_rank_tasks.LowRankSettings(
        rank=self.LORA_RANK,
        alpha=self.LORA_ALPHA,
        targets=self.LORA_TARGET_LAYERS,
        dropout_prob=self.LORA_DROPOUT,
        use_dora=self.LORA_USE_DORA,
        has_reference=self._has_reference(),
      ).add_to_task(task_p)
    if self.LORA_ADAPTER_DIR is not None:
      task_p.train.init_adapter = (self.LORA_ADAPTER_DIR, self.MODEL_DIR)

  def _has_reference(self) -> bool:
    """Returns whether the objective compares with the model at the start."""
    return False

  def _shard(self, task_p: TaskConfig) -> None:
    if self.ICI_MESH_SHAPE is not None:
      set_sharding_annotations = (
        sharding_annotations.set_sharding_annotations_with_expert_parallelism
        if self.USE_EXPERT_PARALLEL
        else sharding_annotations.set_sharding_annotations_v1
      )
      set_sharding_annotations(
        task_p,
        self.TRAINING_OPTIMIZED_SHARDING,
        self.ICI_MESH_SHAPE,
        self.DCN_MESH_SHAPE,
      )
      task_p.decode.gathered_weight_axes = self.DECODE_GATHERED_AXES
      names = task_p.model.mesh_axis_names
      if not {*self.DECODE_GATHERED_AXES} <= {*names}:
        raise ValueError(
          f'DECODE_GATHERED_AXES must be a list of axes of {list(names)}, got'
          f' {self.DECODE_GATHERED_AXES!r}; e.g. --set'
          " DECODE_GATHERED_AXES=['data']"
        )


def check_objective(objective: str, allowed: Sequence[str]) -> None:
  """Checks the constant OBJECTIVE.

  Raises:
    ValueError: It is not one of those that are allowed.
  """
  if objective not in allowed:
    raise ValueError(
      f'OBJECTIVE must be one of {list(allowed)}, got {objective!r}'
    )


def tokenizer_of(folder: str | None) -> Config[tokenizers.Tokenizer]:
  """Returns the Config of the tokenizer of a model.

  Args:
    folder: Its folder. Without one, or without a tokenizer in it, tokens are
      bytes.
  """
  if folder is None:
    return Config(tokenizers.ByteTokenizer)
  files = [pathlib.Path(folder, name) for name in _SENTENCEPIECE_FILES]
  sentencepiece_file = next((file for file in files if file.exists()), None)
  # transformers reads tokenizer.json, which also has the added tokens.
  if pathlib.Path(folder, _TOKENIZERS_FILE).exists() and (
    sentencepiece_file is None or huggingface_tokenizers.is_available()
  ):
    return Config(
      huggingface_tokenizers.HuggingFaceTokenizer, folder=str(folder)
    )
  if sentencepiece_file is not None:
    return Config(
      tokenizers.SentencePieceTokenizer, model_file=str(sentencepiece_file)
    )
  return Config(tokenizers.ByteTokenizer)


def _files_of(
  tokenizer_p: Config[tokenizers.Tokenizer],
) -> dict[str, pathlib.Path]:
  """Returns the files of a tokenizer by the names that transformers reads."""
  if tokenizer_p.cls is huggingface_tokenizers.HuggingFaceTokenizer:
    return _files_in(tokenizer_p.folder, _TOKENIZER_FILES)
  is_sentencepiece = tokenizer_p.cls is tokenizers.SentencePieceTokenizer
  if is_sentencepiece and tokenizer_p.model_file is not None:
    file = pathlib.Path(tokenizer_p.model_file)
    is_known = file.name in _SENTENCEPIECE_FILES
    return {file.name if is_known else _SENTENCEPIECE_FILES[0]: file}
  return {}


def _files_in(
  folder: str | None, names: Sequence[str]
) -> dict[str, pathlib.Path]:
  """Returns the files of a folder that have one of these names."""
  if folder is None:
    return {}
  files = {name: pathlib.Path(folder, name) for name in names}
  return {name: file for name, file in files.items() if file.is_file()}
