# SPDX-License-Identifier: Apache-2.0
"""Fine-tuning of models of Hugging Face on text files."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from absl import logging

from pax import base_experiment, generation_runner, tasks_lib
from pax.checkpoints import policy_networks
from pax.huggingface import (
  families,
  model_folder,
  stacked_variables,
)
from pax.inputs import batch_specs
from pax.inputs.text import (
  conversations,
  preferences,
  prompts,
  responses,
  rewarded_prompts,
  span_corruption,
  text_pairs,
)
from pax.inputs.tokens import (
  chat_templates,
  huggingface_tokenizers,
  tokenizers,
)
from pax.tasks.lm import (
  default_learners,
  lm_data,
  policy_models,
  sharding_annotations,
)
from pax.tasks.lm.params import quickstart
from praxis import base_input, base_layer, pax_fiddle
from praxis.decoding import hparams as decoding
from praxis.layers import checkpoint_policy

Config = pax_fiddle.Config
TaskConfig = Config[tasks_lib.SingleTask]

# Of decoders.
_OBJECTIVES = ('text', 'responses', 'preferences', 'rewards')
_SENTENCEPIECE_FILES = ('tokenizer.model', 'spiece.model')
_TOKENIZERS_FILE = 'tokenizer.json'
_BYTES = Config(tokenizers.ByteTokenizer)


class HuggingFaceModel(base_experiment.BaseExperiment):
  """A task with the model of a config.json."""

  # Contents of config.json, by default of a published model.
  CONFIG: dict[str, Any]
  # Folder with config.json, which replaces CONFIG, and the tokenizer.
  MODEL_DIR: str | None = None
  # Dtype of the computation; variables are float32.
  FPROP_DTYPE = jnp.bfloat16
  # Mesh (replica, data, mdl); None trains one replica per device.
  # USE_EXPERT_PARALLEL adds an axis data_expert before mdl, which shards the
  # experts and the batch.
  ICI_MESH_SHAPE = [1, 1, 1]
  DCN_MESH_SHAPE: Sequence[int] | None = None
  USE_EXPERT_PARALLEL = False
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

  def model_config(self) -> dict[str, Any]:
    """Returns the contents of config.json."""
    if self.MODEL_DIR is None:
      return self.CONFIG
    return model_folder.read_config(pathlib.Path(self.MODEL_DIR))

  def task(self) -> TaskConfig:
    model_p = families.read_model(self.model_config()).model()
    self._set_layers(model_p)
    model_p.set(name='huggingface_model', fprop_dtype=self.FPROP_DTYPE)
    task_p = Config(
      tasks_lib.SingleTask, name='huggingface_task', model=model_p
    )
    default_learners.set_default_adam(
      task_p, self.LEARNING_RATE, self.WEIGHT_DECAY
    )
    return task_p

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


class _FineTuning(quickstart.TinyTraining, HuggingFaceModel):
  """Training, evaluation and greedy decoding of a model."""

  NUM_TRAIN_STEPS = 1000
  LEARNING_RATE = HuggingFaceModel.LEARNING_RATE
  WEIGHT_DECAY = HuggingFaceModel.WEIGHT_DECAY
  ADAM_BETA2 = 0.95
  # Number of prompts in a batch of --mode=decode, decode_once and infer.
  DECODE_BATCH_SIZE = 8

  def task(self) -> TaskConfig:
    task_p = super().task()
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


class HuggingFaceLm(_FineTuning, quickstart.PythonSource):
  """A decoder, trained on text files or on responses to prompts."""

  # 'text': the model learns all tokens of TRAIN_DATA or TRAIN_FILES.
  # 'responses': it learns those of the responses in TRAIN_FILES, JSON lines
  # with `messages` or with the fields PROMPT_FIELD and COMPLETION_FIELD.
  # 'preferences': it learns to prefer the text or messages of CHOSEN_FIELD to
  # those of REJECTED_FIELD, by DPO (arXiv:2305.18290).
  # 'rewards': it learns from the REWARDS of its own responses to PROMPT_FIELD,
  # a text or messages, by GRPO (arXiv:2402.03300).
  OBJECTIVE = 'text'
  PROMPT_FIELD = 'prompt'
  COMPLETION_FIELD = 'completion'
  CHOSEN_FIELD = 'chosen'
  REJECTED_FIELD = 'rejected'
  # Strength of the KL constraint of preferences to the model at the start.
  DPO_BETA = 0.1
  # Functions of the rewards, `module:function`, with their weights; or one
  # function. They take the objects with the prompts and the responses, and
  # return a number for each response.
  REWARDS: str | Mapping[str, float] = ''
  # Number of responses to each prompt; BATCH_SIZE is their number of an update.
  # Tokens of the longest prompt; MAX_SEQ_LEN is that of both.
  NUM_SAMPLES = 8
  MAX_PROMPT_LEN = 128
  # Number of batches that are sampled at once, and of the updates by each.
  ROLLOUT_BATCHES = 1
  ROLLOUT_EPOCHS = 1
  # Mesh axes over which weights are gathered before they sample, not for each
  # token; (): weights stay sharded.
  ROLLOUT_GATHERED_AXES: Sequence[str] = ('data',)
  # Limits of the ratio of the new probability of a sample to the old one, 1 -
  # low and 1 + high, and whether it is that of a 'token' or of the 'sequence'
  # (GSPO, arXiv:2507.18071).
  GRPO_CLIP_LOW = 0.2
  GRPO_CLIP_HIGH = 0.2
  GRPO_RATIO_LEVEL = 'token'
  # Weight of the KL divergence from the model at the start; 0: none. What the
  # loss is a mean of, 'tokens' or 'samples'. Whether a reward is measured in
  # standard deviations of those of its prompt.
  GRPO_BETA = 0.0
  GRPO_LOSS_MEAN = 'tokens'
  GRPO_NORMALIZES_DEVIATION = True
  # Whether layers are a scan over stacked weights, and which activations of a
  # block are saved for the backward pass.
  USE_REPEATED_LAYER = False
  CHECKPOINT_POLICY = checkpoint_policy.AutodiffCheckpointType.SAVE_NOTHING
  # File of prompts for --mode=decode, decode_once and infer, which replaces
  # PROMPTS: a prompt per line, or for *.jsonl objects with `prompt` or
  # `messages`.
  PROMPTS_FILE: str | None = None

  def validate(self) -> None:
    """Checks the constants.

    Raises:
      ValueError: OBJECTIVE is unknown or has no files, or see
        `HuggingFaceModel.validate`.
    """
    # PythonSource checks the vocabulary of a tokenizer that it trains.
    HuggingFaceModel.validate(self)
    check_objective(self.OBJECTIVE, _OBJECTIVES)
    if self.OBJECTIVE == 'text':
      if self.TRAIN_DATA is not None and self.TRAIN_FILES is not None:
        raise ValueError(
          'TRAIN_DATA or TRAIN_FILES must be None, got'
          f' {self.TRAIN_DATA!r} and {self.TRAIN_FILES!r}; set one of them, or'
          ' OBJECTIVE'
        )
      return
    if self.TRAIN_FILES is None:
      raise ValueError(
        f'OBJECTIVE={self.OBJECTIVE} needs TRAIN_FILES, JSON lines with'
        ' prompts, got None; set TRAIN_FILES'
      )
    if self.OBJECTIVE == 'rewards' and not self.REWARDS:
      raise ValueError(
        'OBJECTIVE=rewards needs REWARDS, got none; set REWARDS=module:function'
      )
    if self.TRAIN_DATA is not None:
      raise ValueError(
        f'OBJECTIVE={self.OBJECTIVE} reads TRAIN_FILES, got TRAIN_DATA='
        f'{self.TRAIN_DATA!r}; set TRAIN_FILES instead'
      )

  def task(self) -> TaskConfig:
    task_p = super().task()
    task_p.model.lm_tpl.packed_input = True
    if self.USE_REPEATED_LAYER:
      stacked_variables.repeat_layers(
        task_p.model, checkpoint_policy=self.CHECKPOINT_POLICY
      )
    self._shard(task_p)
    self._set_objective(task_p)
    return task_p

  def train_programs(self) -> list[Any]:
    if self.OBJECTIVE != 'rewards':
      return super().train_programs()
    make_program = base_experiment.program_class('rollouts.RolloutTrainProgram')
    return [
      make_program(
        normalizes_deviation=self.GRPO_NORMALIZES_DEVIATION,
        gathered_axes=self.ROLLOUT_GATHERED_AXES,
      )
    ]

  def datasets(self) -> list[Config[base_input.BaseInput]]:
    inputs = super().datasets()
    if self.OBJECTIVE != 'rewards':
      return inputs
    # Held-out prompts are decoded.
    return [x for x in inputs if x.is_training]

  def decode_datasets(self) -> list[Config[base_input.BaseInput]]:
    if self.OBJECTIVE == 'preferences':
      return []
    if self.PROMPTS_FILE is None:
      if self.OBJECTIVE != 'rewards':
        return super().decode_datasets()
      return [
        self._input(
          'held_out', self.DECODE_BATCH_SIZE, held_out=True, reset_for_eval=True
        )
      ]
    return [
      Config(
        prompts.PromptFileInput,
        name='prompts',
        file=self.PROMPTS_FILE,
        files=self.TRAIN_FILES,
        tokenizer=self._tokenizer(),
        batch_size=batch_specs.rows_per_host(self.DECODE_BATCH_SIZE),
        chat_template=self._chat_template(),
        seq_len=self.DECODE_SEQ_LEN // 2,
        reset_for_eval=True,
      )
    ]

  def _decode_program(self) -> str:
    if self.OBJECTIVE == 'rewards':
      return 'rollouts.RewardDecodeProgram'
    return super()._decode_program()

  def _input(
    self, name: str, batch_size: int, **kwargs: Any
  ) -> Config[base_input.BaseInput]:
    if self.OBJECTIVE == 'text':
      return super()._input(name, batch_size, **kwargs)
    # The prompts of samples are those of PROMPTS_FILE.
    kwargs.pop('sample_prompt', None)
    return self._conversation_input().set(
      name=name,
      files=self.TRAIN_FILES,
      tokenizer=self._tokenizer(),
      chat_template=self._chat_template(),
      prompt_field=self.PROMPT_FIELD,
      batch_size=batch_specs.rows_per_host(batch_size),
      seq_len=self.MAX_SEQ_LEN,
      held_out_percent=self.HELD_OUT_PERCENT,
      **kwargs,
    )

  def _data_input(
    self, own: lm_data.InputConfig, data: str | Mapping[str, float]
  ) -> lm_data.InputConfig:
    input_p = super()._data_input(own, data)
    return input_p.set(vocab_size=self.model_config()['vocab_size'])

  def _conversation_input(self) -> Config[conversations.ConversationInput]:
    """Returns the input of OBJECTIVE with the fields that no other has."""
    if self.OBJECTIVE == 'responses':
      return Config(
        responses.ResponseInput, completion_field=self.COMPLETION_FIELD
      )
    if self.OBJECTIVE == 'preferences':
      return Config(
        preferences.PreferenceInput,
        chosen_field=self.CHOSEN_FIELD,
        rejected_field=self.REJECTED_FIELD,
      )
    rewards = self.REWARDS
    if isinstance(rewards, str):
      rewards = {rewards: 1.0} if rewards else {}
    return Config(
      rewarded_prompts.RewardedPromptInput,
      reward_functions=rewards,
      num_samples=self.NUM_SAMPLES,
      rollout_batches=self.ROLLOUT_BATCHES,
      rollout_epochs=self.ROLLOUT_EPOCHS,
      max_prompt_len=self.MAX_PROMPT_LEN,
    )

  def _set_objective(self, task_p: TaskConfig) -> None:
    """Replaces the model and the optimized variables for OBJECTIVE."""
    has_reference = False
    if self.OBJECTIVE == 'preferences':
      has_reference = True
      task_p.model = policy_models.for_preferences(task_p.model, self.DPO_BETA)
      # The policy decodes after its export.
      task_p.infer_writer = None
    elif self.OBJECTIVE == 'rewards':
      has_reference = self.GRPO_BETA > 0.0
      task_p.model = policy_models.for_rewards(task_p.model).set(
        beta=self.GRPO_BETA,
        loss_mean=self.GRPO_LOSS_MEAN,
        ratio_level=self.GRPO_RATIO_LEVEL,
        clip_ratio_low=self.GRPO_CLIP_LOW,
        clip_ratio_high=self.GRPO_CLIP_HIGH,
      )
      task_p.train.decode_interval_steps = self.EVAL_INTERVAL_STEPS
      self._check_gathered_axes(task_p.model.mesh_axis_names)
    if has_reference:
      task_p.train.learner.bprop_variable_exclusion = [
        policy_networks.REFERENCE_VARIABLES
      ]

  def _check_gathered_axes(self, names: Sequence[str] | None) -> None:
    # Without a mesh each replica has all weights.
    if names and not {*self.ROLLOUT_GATHERED_AXES} <= {*names}:
      raise ValueError(
        f'ROLLOUT_GATHERED_AXES must be a list of axes of {list(names)}, got'
        f' {self.ROLLOUT_GATHERED_AXES!r}; e.g. --set'
        " ROLLOUT_GATHERED_AXES=['data']"
      )

  def _decoder(self) -> Config[decoding.DecoderHParams]:
    num_tokens = self.DECODE_SEQ_LEN // 2
    if self.OBJECTIVE == 'rewards':
      # As in training.
      num_tokens = self.MAX_SEQ_LEN - self.MAX_PROMPT_LEN
    return Config(
      decoding.GreedyDecoderHParams,
      fprop_for_prefix=True,
      seqlen=self.DECODE_SEQ_LEN,
      max_decode_steps=num_tokens,
      eos_id=self.eos_ids(),
    )

  def _tokenizer(self) -> Config[tokenizers.Tokenizer]:
    named = lm_data.LanguageModelData._tokenizer(self)
    return HuggingFaceModel._tokenizer(self) if named is None else named


class HuggingFaceSequenceModel(_FineTuning):
  """An encoder-decoder, trained on pairs of texts or on texts with spans."""

  # Paths, globs or folders. With OBJECTIVE 'pairs' they are JSON lines with the
  # fields SOURCE_FIELD and TARGET_FIELD. With 'span_corruption' they are texts
  # whose spans the model predicts; None is the Python standard library.
  TRAIN_FILES: str | Sequence[str] | None = None
  OBJECTIVE = 'span_corruption'
  SOURCE_FIELD = 'input'
  TARGET_FIELD = 'target'
  # Percentage of held-out pairs or texts.
  HELD_OUT_PERCENT = 2.0
  # Global batch sizes in rows, and tokens per row.
  BATCH_SIZE = 8
  EVAL_BATCH_SIZE = 32
  SOURCE_LEN = 512
  TARGET_LEN = 128
  # Whether to evaluate on held-out text during training.
  EVAL_ON_TEST = True
  # Files of pairs for --mode=decode, decode_once and infer, whose targets may
  # be absent; None decodes the held-out sources.
  PROMPTS_FILE: str | Sequence[str] | None = None
  # Only layers of decoders may be a scan over stacked weights.
  USE_REPEATED_LAYER = False

  def validate(self) -> None:
    """Checks the constants.

    Raises:
      ValueError: OBJECTIVE is unknown, layers are to be repeated, or see
        `HuggingFaceModel.validate`.
    """
    super().validate()
    if self.USE_REPEATED_LAYER:
      raise ValueError(
        'USE_REPEATED_LAYER must be False for an encoder-decoder, got True:'
        ' all layers share a relative bias, which a scan over layers would not'
        ' share; leave it out'
      )
    check_objective(self.OBJECTIVE, ('pairs', 'span_corruption'))
    if self.OBJECTIVE == 'pairs' and self.TRAIN_FILES is None:
      raise ValueError(
        'OBJECTIVE=pairs needs TRAIN_FILES, JSON lines with SOURCE_FIELD and'
        ' TARGET_FIELD, got None; set TRAIN_FILES'
      )
    if self.OBJECTIVE == 'span_corruption':
      sentinel = span_corruption.first_sentinel(self._tokenizer().Instantiate())
      size = self.model_config()['vocab_size']
      if sentinel >= size:
        raise ValueError(
          f'OBJECTIVE=span_corruption needs the id {sentinel} for the first'
          f' sentinel, got a vocab_size of {size}; use the tokenizer of a T5,'
          ' or set OBJECTIVE=pairs'
        )

  def task(self) -> TaskConfig:
    task_p = super().task()
    self._shard(task_p)
    return task_p

  def datasets(self) -> list[Config[base_input.BaseInput]]:
    return [
      self._input('train', self.BATCH_SIZE).set(is_training=True),
      self._held_out('held_out', self.EVAL_BATCH_SIZE),
    ]

  def decode_datasets(self) -> list[Config[base_input.BaseInput]]:
    if self.PROMPTS_FILE is None:
      return [self._held_out('prompts', self.DECODE_BATCH_SIZE)]
    return [
      self._pairs('prompts', self.DECODE_BATCH_SIZE).set(
        files=self.PROMPTS_FILE, held_out_percent=0.0, reset_for_eval=True
      )
    ]

  def _held_out(self, name: str, batch_size: int) -> Config:
    return self._input(name, batch_size).set(
      held_out=True, reset_for_eval=True, eval_loop_num_batches=None
    )

  def _input(self, name: str, batch_size: int) -> Config:
    if self.OBJECTIVE == 'pairs':
      return self._pairs(name, batch_size)
    input_p = Config(span_corruption.SpanCorruptionInput)
    return self._set_input(input_p, name, batch_size)

  def _pairs(self, name: str, batch_size: int) -> Config:
    input_p = Config(
      text_pairs.TextPairInput,
      source_field=self.SOURCE_FIELD,
      target_field=self.TARGET_FIELD,
    )
    return self._set_input(input_p, name, batch_size)

  def _set_input(self, input_p: Config, name: str, batch_size: int) -> Config:
    return input_p.set(
      name=name,
      files=self.TRAIN_FILES,
      tokenizer=self._tokenizer(),
      batch_size=batch_specs.rows_per_host(batch_size),
      source_len=self.SOURCE_LEN,
      target_len=self.TARGET_LEN,
      start_id=self._start_id(),
      held_out_percent=self.HELD_OUT_PERCENT,
    )

  def _decoder(self) -> Config[decoding.DecoderHParams]:
    return Config(
      decoding.GreedyDecoderHParams,
      seqlen=self.TARGET_LEN,
      eos_id=self.eos_ids(),
    )

  def _start_id(self) -> int:
    config = self.model_config()
    start_id = config.get('decoder_start_token_id')
    return config.get('pad_token_id', 0) if start_id is None else start_id

  def _network(self, task_p: TaskConfig) -> Config[base_layer.BaseLayer]:
    return task_p.model.model_tpl


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
