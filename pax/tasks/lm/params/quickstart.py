# SPDX-License-Identifier: Apache-2.0
"""A small language model of Python source code, for a laptop.

pax --exp=tasks.lm.params.quickstart.TinyLm --job_log_dir=/tmp/pax/tiny
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from pax import (
  base_experiment,
  experiment_registry,
  tasks_lib,
)
from pax.inputs import batch_specs
from pax.inputs.text import packed_text
from pax.inputs.text import prompts as prompts_lib
from pax.inputs.tokens import tokenizers
from pax.tasks.lm import lm_data, model_params
from praxis import (
  base_input,
  base_layer,
  optimizers,
  pax_fiddle,
  schedules,
)
from praxis.decoding import hparams as decoding
from praxis.layers import activations

Config = pax_fiddle.Config
WeightInit = base_layer.WeightInit
TaskConfig = Config[tasks_lib.SingleTask]

_DECAYS: dict[str, type[schedules.BaseSchedule]] = {
  'cosine': schedules.LinearRampupCosineDecay,
  'linear': schedules.LinearRampupPolynomialDecay,
  'constant': schedules.LinearRampupPolynomialDecay,
}
# Vocabulary size of the tokenizer, and of TinyLm.
_NUM_PIECES = 2048


class PythonSource(lm_data.LanguageModelData):
  """Text files; by default the source of the Python standard library."""

  # Paths, globs or folders of text, or of records with TEXT_FIELD; None is the
  # Python standard library.
  TRAIN_FILES: str | Sequence[str] | None = None
  # Vocabulary size of the SentencePiece tokenizer, which is trained on the text
  # once and cached; None is a tokenizer of bytes.
  NUM_PIECES: int | None = _NUM_PIECES
  # Percentage of held-out documents.
  HELD_OUT_PERCENT = 2.0
  # Vocabulary size of the model, at least that of the tokenizer; set by the
  # model.
  VOCAB_SIZE: int
  # Global batch size in rows, and tokens per row.
  BATCH_SIZE = 8
  MAX_SEQ_LEN = 256
  EVAL_BATCH_SIZE = 32
  # Whether to evaluate on held-out text during training.
  EVAL_ON_TEST = True
  # Prompt of the sample after training.
  SAMPLE_PROMPT = 'def '
  # Prompts of --mode=decode and decode_once, and the maximum length of a sample
  # including its prompt.
  PROMPTS = ('def ', 'class ', 'import ', 'for i in range(')
  DECODE_SEQ_LEN = 128

  def validate(self) -> None:
    """Checks the constants.

    Raises:
      ValueError: The vocabulary of the model is smaller than the tokenizer's.
    """
    super().validate()
    if self.TOKENIZER is not None:
      return  # The inputs compare its size.
    min_size = self.NUM_PIECES or tokenizers.ByteTokenizer.vocab_size
    if self.VOCAB_SIZE < min_size:
      raise ValueError(
        'VOCAB_SIZE must be at least the vocabulary size of the tokenizer, '
        f'{min_size}, got {self.VOCAB_SIZE}; pass --set VOCAB_SIZE={min_size}'
      )

  def datasets(self) -> list[Config[base_input.BaseInput]]:
    train = self._input(
      'train',
      self.BATCH_SIZE,
      is_training=True,
      sample_prompt=self.SAMPLE_PROMPT,
    )
    held_out = self._input(
      'held_out',
      self.EVAL_BATCH_SIZE,
      held_out=True,
      reset_for_eval=True,
      eval_loop_num_batches=None,
    )
    return self.with_data([train, held_out])

  def decode_datasets(self) -> list[Config[base_input.BaseInput]]:
    prompts = Config(
      prompts_lib.PromptLmInput,
      name='prompts',
      prompts=self.PROMPTS,
      files=self.TRAIN_FILES,
      text_field=self.TEXT_FIELD,
      tokenizer=self._tokenizer(),
      batch_size=max(1, len(self.PROMPTS) // jax.process_count()),
      seq_len=self.DECODE_SEQ_LEN // 2,
      held_out_percent=self.HELD_OUT_PERCENT,
      reset_for_eval=True,
    )
    return [prompts]

  def task(self) -> TaskConfig:
    task_p = super().task()
    eos_id = tokenizers.SentencePieceTokenizer.EOS_ID
    if self.NUM_PIECES is None:
      eos_id = tokenizers.ByteTokenizer.eos_id
    task_p.model.decoder_tpl = Config(
      decoding.SampleDecoderHParams,
      fprop_for_prefix=True,
      seqlen=self.DECODE_SEQ_LEN,
      max_decode_steps=self.DECODE_SEQ_LEN // 2,
      eos_id=eos_id,
      temperature=0.7,
      k=40,
    )
    return task_p

  def _input(
    self, name: str, batch_size: int, **kwargs: object
  ) -> Config[base_input.BaseInput]:
    return Config(
      packed_text.TextLmInput,
      name=name,
      files=self.TRAIN_FILES,
      text_field=self.TEXT_FIELD,
      tokenizer=self._tokenizer(),
      batch_size=batch_specs.rows_per_host(batch_size),
      seq_len=self.MAX_SEQ_LEN,
      held_out_percent=self.HELD_OUT_PERCENT,
      **kwargs,
    )

  def _benchmark_input(
    self, tokenizer_p: Config[tokenizers.Tokenizer]
  ) -> Config[packed_text.TextLmInput]:
    # A tokenizer that learns is that of the training text.
    return (
      super()
      ._benchmark_input(tokenizer_p)
      .set(
        files=self.TRAIN_FILES,
        text_field=self.TEXT_FIELD,
        held_out_percent=self.HELD_OUT_PERCENT,
      )
    )

  def _tokenizer(self) -> Config[tokenizers.Tokenizer]:
    if (named := super()._tokenizer()) is not None:
      return named
    if self.NUM_PIECES is None:
      return Config(tokenizers.ByteTokenizer)
    return Config(tokenizers.SentencePieceTokenizer, num_pieces=self.NUM_PIECES)


class TinyTraining(base_experiment.BaseExperiment):
  """Training by Adam with a linear warm-up and a decay."""

  NUM_TRAIN_STEPS = 600
  LEARNING_RATE = 3e-3
  WARMUP_STEPS = 50
  # The decay after the warm-up, 'cosine', 'linear' or 'constant', in the last
  # LR_DECAY_STEPS steps, before which the rate is constant; None: in all steps.
  # The final learning rate, as a fraction of the peak.
  LR_SCHEDULE = 'cosine'
  LR_DECAY_STEPS: int | None = None
  LR_MIN_RATIO = 0.05
  ADAM_BETA1 = 0.9
  ADAM_BETA2 = 0.99
  ADAM_EPSILON = 1e-6
  # Maximum root mean square of the update of a variable; -1 does not clip.
  ADAM_CLIP_THRESHOLD = 1.0
  WEIGHT_DECAY = 1e-3
  CLIP_GRADIENT_NORM_TO_VALUE = 1.0

  CHECKPOINT_EVERY_N_STEPS: int | None = 200
  SUMMARY_INTERVAL_STEPS = 10
  EVAL_INTERVAL_STEPS: int | None = 200

  def task(self) -> TaskConfig:
    task_p = super().task()
    self._network(task_p).params_init = WeightInit.GaussianSqrtFanIn()
    task_p.train.set(
      num_train_steps=self.NUM_TRAIN_STEPS,
      save_interval_steps=self.CHECKPOINT_EVERY_N_STEPS,
      save_max_to_keep=2,
      summary_interval_steps=self.SUMMARY_INTERVAL_STEPS,
      eval_interval_steps=self.EVAL_INTERVAL_STEPS,
      # Saves the compilation of another step: held-out text is evaluated.
      eval_skip_train=True,
    )
    task_p.train.learner.optimizer = Config(
      optimizers.Adam,
      learning_rate=self.LEARNING_RATE,
      beta1=self.ADAM_BETA1,
      beta2=self.ADAM_BETA2,
      epsilon=self.ADAM_EPSILON,
      clip_threshold=self.ADAM_CLIP_THRESHOLD,
      weight_decay=self.WEIGHT_DECAY,
      clip_gradient_norm_to_value=self.CLIP_GRADIENT_NORM_TO_VALUE,
      lr_schedule=self._lr_schedule(),
    )
    return task_p

  def _lr_schedule(self) -> Config[schedules.BaseSchedule]:
    """Returns the schedule.

    Raises:
      ValueError: LR_DECAY_STEPS has no effect, or there are fewer steps.
    """
    is_constant = self.LR_SCHEDULE == 'constant'
    start = self.WARMUP_STEPS
    if self.LR_DECAY_STEPS is not None:
      if is_constant:
        raise ValueError(
          'LR_DECAY_STEPS must be None with LR_SCHEDULE=constant, which does'
          f' not decay, got {self.LR_DECAY_STEPS}; set LR_SCHEDULE=linear'
        )
      start = self.NUM_TRAIN_STEPS - self.LR_DECAY_STEPS
      if start < self.WARMUP_STEPS:
        raise ValueError(
          'LR_DECAY_STEPS must be at most'
          f' {self.NUM_TRAIN_STEPS - self.WARMUP_STEPS}, NUM_TRAIN_STEPS -'
          f' WARMUP_STEPS, got {self.LR_DECAY_STEPS}; change one of them'
        )
    return Config(
      _DECAYS[self.LR_SCHEDULE],
      warmup_steps=self.WARMUP_STEPS,
      decay_start=start,
      decay_end=max(self.NUM_TRAIN_STEPS, self.WARMUP_STEPS + 1),
      min_ratio=1.0 if is_constant else self.LR_MIN_RATIO,
      max=1.0,
    )

  def _network(self, task_p: TaskConfig) -> Config[base_layer.BaseLayer]:
    """Returns the Config of the network in the model."""
    return task_p.model.lm_tpl


@experiment_registry.register
class TinyLm(
  TinyTraining, PythonSource, model_params.TransformerLmSpmdAdafactor
):
  """Below 2.1 bits per held-out byte in four minutes on two CPU cores.

  For N devices, pass --set ICI_MESH_SHAPE=[1,N,1].
  """

  MODEL_DIMS = 192
  HIDDEN_DIMS = 768
  NUM_HEADS = 2
  DIMS_PER_HEAD = None
  NUM_LAYERS = 3
  VOCAB_SIZE = _NUM_PIECES
  FPROP_DTYPE = jnp.float32
  ACTIVATION_CLS = activations.SquaredReLU
  USE_ROTARY_POSITION_EMB = True
  ATTEN_LOGIT_CAP = 0.0

  # The bases declare it with different types.
  LEARNING_RATE = TinyTraining.LEARNING_RATE

  ICI_MESH_SHAPE = [1, 1, 1]


@experiment_registry.register
class TinyLmBytes(TinyLm):
  """TinyLm on bytes: its loss starts at 8 bits per byte."""

  NUM_PIECES = None
  VOCAB_SIZE = tokenizers.ByteTokenizer.vocab_size
  NUM_TRAIN_STEPS = 1400


@experiment_registry.register
class TinyLmPmap(
  TinyTraining, PythonSource, model_params.TransformerLmPmapAdam
):
  """TinyLm with one replica per device."""

  MODEL_DIMS = TinyLm.MODEL_DIMS
  HIDDEN_DIMS = TinyLm.HIDDEN_DIMS
  NUM_HEADS = TinyLm.NUM_HEADS
  NUM_LAYERS = TinyLm.NUM_LAYERS
  VOCAB_SIZE = TinyLm.VOCAB_SIZE
  ACTIVATION_CLS = TinyLm.ACTIVATION_CLS
  ATTEN_LOGIT_CAP = TinyLm.ATTEN_LOGIT_CAP
