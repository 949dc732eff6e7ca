# SPDX-License-Identifier: Apache-2.0
"""What decoders of Hugging Face learn from: the values of OBJECTIVE."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from typing_extensions import override

from pax import base_experiment, tasks_lib
from pax.checkpoints import policy_networks
from pax.inputs.text import (
  conversations,
  preferences,
  responses,
  rewarded_prompts,
)
from pax.tasks.lm import policy_models
from pax.tasks.lm.params import huggingface_model, quickstart
from praxis import base_input, pax_fiddle

Config = pax_fiddle.Config
InputConfig = Config[base_input.BaseInput]
TaskConfig = Config[tasks_lib.SingleTask]

# Numbers of steps at which no rollout is left half learned.
_ROLLOUT_INTERVALS = (
  'NUM_TRAIN_STEPS',
  'CHECKPOINT_EVERY_N_STEPS',
  'EVAL_INTERVAL_STEPS',
)


class ObjectiveConstants(huggingface_model.FineTuning, quickstart.PythonSource):
  """The constants of all objectives."""

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


class Objective:
  """What a decoder learns from; base class of the values of OBJECTIVE."""

  # Whether the loss is one of tokens, as that of multi-token prediction is.
  has_token_loss: ClassVar[bool] = True

  def __init__(self, experiment: ObjectiveConstants) -> None:
    """Creates the objective of an experiment."""
    self._experiment = experiment

  def check(self) -> None:
    """Checks the constants.

    Raises:
      ValueError: They do not fit the objective.
    """

  def conversation_input(
    self,
  ) -> Config[conversations.ConversationInput] | None:
    """Returns the input with the fields of its own; None reads texts."""
    return None

  def has_reference(self) -> bool:
    """Returns whether the loss compares with the model at the start."""
    return False

  def set_model(self, task_p: TaskConfig) -> None:
    """Replaces the model of a task by one that learns from the objective."""

  def train_programs(self) -> list[Any] | None:
    """Returns the training programs; None are those of other tasks."""
    return None

  def decode_program(self) -> str | None:
    """Returns the name of the decode program; None is that of other tasks."""
    return None

  def evaluated(self, inputs: Sequence[InputConfig]) -> list[InputConfig]:
    """Returns those of the training and evaluation inputs that are run."""
    return list(inputs)

  def decodes_held_out(self) -> bool:
    """Returns whether held-out examples are decoded instead of PROMPTS."""
    return False

  def can_decode(self) -> bool:
    """Returns whether the model decodes."""
    return True

  def max_response_len(self) -> int:
    """Returns the number of tokens of the longest decoded response."""
    return self._experiment.DECODE_SEQ_LEN // 2


class Texts(Objective):
  """All tokens of TRAIN_DATA or TRAIN_FILES."""

  @override
  def check(self) -> None:
    data, files = self._experiment.TRAIN_DATA, self._experiment.TRAIN_FILES
    if data is not None and files is not None:
      raise ValueError(
        f'TRAIN_DATA or TRAIN_FILES must be None, got {data!r} and {files!r};'
        ' set one of them, or OBJECTIVE'
      )


class _Conversations(Objective):
  """Base class of objectives with prompts and responses in TRAIN_FILES."""

  @override
  def check(self) -> None:
    experiment = self._experiment
    if experiment.TRAIN_FILES is None:
      raise ValueError(
        f'OBJECTIVE={experiment.OBJECTIVE} needs TRAIN_FILES, JSON lines with'
        ' prompts, got None; set TRAIN_FILES'
      )
    if experiment.MTP_LOSS_WEIGHT and not self.has_token_loss:
      raise ValueError(
        'MTP_LOSS_WEIGHT is that of a loss of tokens, which'
        f' OBJECTIVE={experiment.OBJECTIVE} has none of, got'
        f' {experiment.MTP_LOSS_WEIGHT}; set MTP_LOSS_WEIGHT=0.0'
      )
    if experiment.TRAIN_DATA is not None:
      raise ValueError(
        f'OBJECTIVE={experiment.OBJECTIVE} reads TRAIN_FILES, got TRAIN_DATA='
        f'{experiment.TRAIN_DATA!r}; set TRAIN_FILES instead'
      )

  def _freeze_reference(self, task_p: TaskConfig) -> None:
    """Excludes the reference from training; LoRA has none of its own."""
    if self.has_reference() and not self._experiment.LORA_RANK:
      task_p.train.learner.bprop_variable_exclusion = [
        policy_networks.FROZEN_VARIABLES
      ]
      task_p.train.save_frozen_variables_once = True

  def _has_low_rank_reference(self) -> bool:
    return self.has_reference() and self._experiment.LORA_RANK > 0


class Responses(_Conversations):
  """The tokens of responses."""

  @override
  def conversation_input(self) -> Config[conversations.ConversationInput]:
    return Config(
      responses.ResponseInput,
      completion_field=self._experiment.COMPLETION_FIELD,
    )


class Preferences(_Conversations):
  """Which of two responses is better, by DPO."""

  has_token_loss: ClassVar[bool] = False

  @override
  def conversation_input(self) -> Config[conversations.ConversationInput]:
    return Config(
      preferences.PreferenceInput,
      chosen_field=self._experiment.CHOSEN_FIELD,
      rejected_field=self._experiment.REJECTED_FIELD,
    )

  @override
  def has_reference(self) -> bool:
    return True

  @override
  def set_model(self, task_p: TaskConfig) -> None:
    task_p.model = policy_models.for_preferences(
      task_p.model,
      self._experiment.DPO_BETA,
      has_low_rank_reference=self._has_low_rank_reference(),
    )
    task_p.infer_writer = None
    self._freeze_reference(task_p)

  @override
  def can_decode(self) -> bool:
    # The policy decodes after its export.
    return False


class Rewards(_Conversations):
  """The REWARDS of the model's own responses, by GRPO."""

  has_token_loss: ClassVar[bool] = False

  @override
  def check(self) -> None:
    super().check()
    experiment = self._experiment
    if not experiment.REWARDS:
      raise ValueError(
        'OBJECTIVE=rewards needs REWARDS, got none; set REWARDS=module:function'
      )
    if experiment.GRPO_MASKS_TRUNCATED and min(experiment.eos_ids()) < 0:
      raise ValueError(
        'GRPO_MASKS_TRUNCATED=True learns from responses that end, which needs'
        ' eos_token_id in config.json, got none; add it, or set'
        ' GRPO_MASKS_TRUNCATED=False'
      )
    if experiment.MAX_PROMPT_LEN >= experiment.MAX_SEQ_LEN:
      raise ValueError(
        'MAX_PROMPT_LEN must be less than MAX_SEQ_LEN, which leaves room for a'
        f' response, got {experiment.MAX_PROMPT_LEN} and'
        f' {experiment.MAX_SEQ_LEN}; change one of them'
      )
    max_len = self.max_response_len()
    if experiment.GRPO_PENALIZED_TOKENS > max_len:
      raise ValueError(
        f'GRPO_PENALIZED_TOKENS must be at most {max_len}, MAX_SEQ_LEN -'
        f' MAX_PROMPT_LEN, got {experiment.GRPO_PENALIZED_TOKENS}; change one'
        ' of them'
      )
    num_updates = experiment.ROLLOUT_BATCHES * experiment.ROLLOUT_EPOCHS
    for name in _ROLLOUT_INTERVALS:
      if (value := getattr(experiment, name)) % num_updates:
        raise ValueError(
          f'{name} must be a multiple of {num_updates}, ROLLOUT_BATCHES times'
          f' ROLLOUT_EPOCHS, got {value}; change one of them'
        )

  @override
  def conversation_input(self) -> Config[conversations.ConversationInput]:
    experiment = self._experiment
    rewards = experiment.REWARDS
    if isinstance(rewards, str):
      rewards = {rewards: 1.0} if rewards else {}
    return Config(
      rewarded_prompts.RewardedPromptInput,
      reward_functions=rewards,
      num_samples=experiment.NUM_SAMPLES,
      rollout_batches=experiment.ROLLOUT_BATCHES,
      rollout_epochs=experiment.ROLLOUT_EPOCHS,
      max_prompt_len=experiment.MAX_PROMPT_LEN,
    )

  @override
  def has_reference(self) -> bool:
    return self._experiment.GRPO_BETA > 0.0

  @override
  def set_model(self, task_p: TaskConfig) -> None:
    experiment = self._experiment
    task_p.model = policy_models.for_rewards(task_p.model).set(
      beta=experiment.GRPO_BETA,
      has_low_rank_reference=self._has_low_rank_reference(),
      loss_mean=experiment.GRPO_LOSS_MEAN,
      ratio_level=experiment.GRPO_RATIO_LEVEL,
      clip_ratio_low=experiment.GRPO_CLIP_LOW,
      clip_ratio_high=experiment.GRPO_CLIP_HIGH,
      temperature=experiment.ROLLOUT_TEMPERATURE,
      max_response_len=self.max_response_len(),
    )
    task_p.train.decode_interval_steps = experiment.EVAL_INTERVAL_STEPS
    self._freeze_reference(task_p)

  @override
  def train_programs(self) -> list[Any]:
    experiment = self._experiment
    make_program = base_experiment.program_class(
      'rollouts.programs.RolloutTrainProgram'
    )
    return [
      make_program(
        normalizes_deviation=experiment.GRPO_NORMALIZES_DEVIATION,
        masks_truncated=experiment.GRPO_MASKS_TRUNCATED,
        penalized_tokens=experiment.GRPO_PENALIZED_TOKENS,
        top_k=experiment.ROLLOUT_TOP_K,
        top_p=experiment.ROLLOUT_TOP_P,
      )
    ]

  @override
  def decode_program(self) -> str:
    return 'rollouts.programs.RewardDecodeProgram'

  @override
  def evaluated(self, inputs: Sequence[InputConfig]) -> list[InputConfig]:
    # Held-out prompts are decoded.
    return [x for x in inputs if x.is_training]

  @override
  def decodes_held_out(self) -> bool:
    return True

  @override
  def max_response_len(self) -> int:
    # As in training.
    return self._experiment.MAX_SEQ_LEN - self._experiment.MAX_PROMPT_LEN


OBJECTIVES: Mapping[str, type[Objective]] = {
  'text': Texts,
  'responses': Responses,
  'preferences': Preferences,
  'rewards': Rewards,
}
