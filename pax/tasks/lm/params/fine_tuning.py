# SPDX-License-Identifier: Apache-2.0
"""Fine-tuning of decoders of Hugging Face."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pax import base_experiment, tasks_lib
from pax.checkpoints import policy_networks
from pax.huggingface import stacked_variables
from pax.inputs import batch_specs
from pax.inputs.text import (
  conversations,
  preferences,
  prompts,
  responses,
  rewarded_prompts,
)
from pax.inputs.tokens import tokenizers
from pax.tasks.lm import distillation, lm_data, policy_models
from pax.tasks.lm.params import huggingface_model, quickstart
from praxis import base_input, pax_fiddle
from praxis.decoding import hparams as decoding
from praxis.layers import checkpoint_policy

Config = pax_fiddle.Config
TaskConfig = Config[tasks_lib.SingleTask]

_OBJECTIVES = ('text', 'responses', 'preferences', 'rewards')
# Numbers of steps at which no rollout is left half learned.
_ROLLOUT_INTERVALS = (
  'NUM_TRAIN_STEPS',
  'CHECKPOINT_EVERY_N_STEPS',
  'EVAL_INTERVAL_STEPS',
)


class HuggingFaceLm(huggingface_model.FineTuning, quickstart.PythonSource):
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
  # Temperature of the samples; the number of the most probable tokens to sample
  # from, 0: all, and the total probability of those of them to sample from.
  ROLLOUT_TEMPERATURE = 1.0
  ROLLOUT_TOP_K = 0
  ROLLOUT_TOP_P = 1.0
  # Limits of the ratio of the new probability of a sample to the old one, 1 -
  # low and 1 + high, and whether it is that of a 'token' or of the 'sequence'
  # (GSPO, arXiv:2507.18071).
  GRPO_CLIP_LOW = 0.2
  GRPO_CLIP_HIGH = 0.2
  GRPO_RATIO_LEVEL = 'token'
  # Weight of the KL divergence from the model at the start; 0: none. What the
  # loss is a mean of, 'tokens' or 'samples', or 'max_length': of the sums of
  # samples over the length of the longest possible one. Whether a reward is
  # measured in standard deviations of those of its prompt, and whether nothing
  # is learned from samples without eos. Number of the last possible tokens of a
  # response over which its reward falls by 1; 0: none.
  GRPO_BETA = 0.0
  GRPO_LOSS_MEAN = 'tokens'
  GRPO_NORMALIZES_DEVIATION = True
  GRPO_MASKS_TRUNCATED = False
  GRPO_PENALIZED_TOKENS = 0
  # Folder of a teacher with the same vocabulary: the model learns texts and
  # responses from its distributions, too (arXiv:1503.02531). Weight of these
  # in the loss, from 0 to 1, and the temperature at which they are compared.
  TEACHER_DIR: str | None = None
  DISTILLATION_WEIGHT = 0.5
  DISTILLATION_TEMPERATURE = 1.0
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
      ValueError: OBJECTIVE is unknown or has no files, the teacher does not
        fit, or see `huggingface_model.HuggingFaceModel.validate`.
    """
    # PythonSource checks the vocabulary of a tokenizer that it trains.
    huggingface_model.HuggingFaceModel.validate(self)
    huggingface_model.check_objective(self.OBJECTIVE, _OBJECTIVES)
    self._check_teacher()
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
    if self.MTP_LOSS_WEIGHT and self.OBJECTIVE != 'responses':
      raise ValueError(
        'MTP_LOSS_WEIGHT is that of a loss of tokens, which'
        f' OBJECTIVE={self.OBJECTIVE} has none of, got {self.MTP_LOSS_WEIGHT};'
        ' set MTP_LOSS_WEIGHT=0.0'
      )
    if self.OBJECTIVE == 'rewards':
      self._check_rewards()
    if self.TRAIN_DATA is not None:
      raise ValueError(
        f'OBJECTIVE={self.OBJECTIVE} reads TRAIN_FILES, got TRAIN_DATA='
        f'{self.TRAIN_DATA!r}; set TRAIN_FILES instead'
      )

  def _check_rewards(self) -> None:
    if not self.REWARDS:
      raise ValueError(
        'OBJECTIVE=rewards needs REWARDS, got none; set REWARDS=module:function'
      )
    if self.GRPO_MASKS_TRUNCATED and min(self.eos_ids()) < 0:
      raise ValueError(
        'GRPO_MASKS_TRUNCATED=True learns from responses that end, which needs'
        ' eos_token_id in config.json, got none; add it, or set'
        ' GRPO_MASKS_TRUNCATED=False'
      )
    if self.MAX_PROMPT_LEN >= self.MAX_SEQ_LEN:
      raise ValueError(
        'MAX_PROMPT_LEN must be less than MAX_SEQ_LEN, which leaves room for a'
        f' response, got {self.MAX_PROMPT_LEN} and {self.MAX_SEQ_LEN}; change'
        ' one of them'
      )
    max_len = self.MAX_SEQ_LEN - self.MAX_PROMPT_LEN
    if self.GRPO_PENALIZED_TOKENS > max_len:
      raise ValueError(
        f'GRPO_PENALIZED_TOKENS must be at most {max_len}, MAX_SEQ_LEN -'
        f' MAX_PROMPT_LEN, got {self.GRPO_PENALIZED_TOKENS}; change one of them'
      )
    num_updates = self.ROLLOUT_BATCHES * self.ROLLOUT_EPOCHS
    for name in _ROLLOUT_INTERVALS:
      if (value := getattr(self, name)) % num_updates:
        raise ValueError(
          f'{name} must be a multiple of {num_updates}, ROLLOUT_BATCHES times'
          f' ROLLOUT_EPOCHS, got {value}; change one of them'
        )

  def task(self) -> TaskConfig:
    task_p = super().task()
    task_p.model.lm_tpl.packed_input = True
    if self.TEACHER_DIR is not None:
      distillation.add_teacher(
        task_p,
        self.TEACHER_DIR,
        weight=self.DISTILLATION_WEIGHT,
        temperature=self.DISTILLATION_TEMPERATURE,
        repeats_layers=self.USE_REPEATED_LAYER,
      )
    if self.USE_REPEATED_LAYER:
      stacked_variables.repeat_layers(
        task_p.model, checkpoint_policy=self.CHECKPOINT_POLICY
      )
    self._add_low_rank_updates(task_p)
    self._shard(task_p)
    self._set_objective(task_p)
    return task_p

  def train_programs(self) -> list[Any]:
    if self.OBJECTIVE != 'rewards':
      return super().train_programs()
    make_program = base_experiment.program_class(
      'rollouts.programs.RolloutTrainProgram'
    )
    return [
      make_program(
        normalizes_deviation=self.GRPO_NORMALIZES_DEVIATION,
        masks_truncated=self.GRPO_MASKS_TRUNCATED,
        penalized_tokens=self.GRPO_PENALIZED_TOKENS,
        top_k=self.ROLLOUT_TOP_K,
        top_p=self.ROLLOUT_TOP_P,
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
      return 'rollouts.programs.RewardDecodeProgram'
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

  def _check_teacher(self) -> None:
    if self.TEACHER_DIR is None:
      return
    teacher = distillation.Teacher(folder=self.TEACHER_DIR)
    teacher.check_objective(self.OBJECTIVE)
    teacher.check_student(
      self.model_config(),
      self._tokenizer().Instantiate(),
      huggingface_model.tokenizer_of(self.TEACHER_DIR).Instantiate(),
      self.MAX_SEQ_LEN,
    )

  def _set_objective(self, task_p: TaskConfig) -> None:
    """Replaces the model and the optimized variables for OBJECTIVE."""
    has_low_rank_reference = self._has_reference() and self.LORA_RANK > 0
    if self.OBJECTIVE == 'preferences':
      task_p.model = policy_models.for_preferences(
        task_p.model,
        self.DPO_BETA,
        has_low_rank_reference=has_low_rank_reference,
      )
      # The policy decodes after its export.
      task_p.infer_writer = None
    elif self.OBJECTIVE == 'rewards':
      task_p.model = policy_models.for_rewards(task_p.model).set(
        beta=self.GRPO_BETA,
        has_low_rank_reference=has_low_rank_reference,
        loss_mean=self.GRPO_LOSS_MEAN,
        ratio_level=self.GRPO_RATIO_LEVEL,
        clip_ratio_low=self.GRPO_CLIP_LOW,
        clip_ratio_high=self.GRPO_CLIP_HIGH,
        temperature=self.ROLLOUT_TEMPERATURE,
        max_response_len=self.MAX_SEQ_LEN - self.MAX_PROMPT_LEN,
      )
      task_p.train.decode_interval_steps = self.EVAL_INTERVAL_STEPS
    if self._has_reference() and not self.LORA_RANK:
      task_p.train.learner.bprop_variable_exclusion = [
        policy_networks.FROZEN_VARIABLES
      ]
      task_p.train.save_frozen_variables_once = True

  def _has_reference(self) -> bool:
    if self.OBJECTIVE == 'rewards':
      return self.GRPO_BETA > 0.0
    return self.OBJECTIVE == 'preferences'

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
    if named is not None:
      return named
    return huggingface_model.HuggingFaceModel._tokenizer(self)
