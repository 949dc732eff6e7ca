# SPDX-License-Identifier: Apache-2.0
"""Evaluation of a language model on tasks of lm-evaluation-harness."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import jax

from pax import io_utils, partitioning, tasks_lib
from pax.files import atomic_file
from pax.programs import decode, metric_accumulator, program
from praxis import pax_fiddle

if TYPE_CHECKING:
  # Only experiments of text need them.
  from pax.inputs.text import packed_text
  from pax.inputs.tokens import chat_templates

_PREFIX = 'lm_eval/'


@dataclasses.dataclass(frozen=True, kw_only=True)
class LmEvalSettings:
  """Which tasks of the harness to evaluate, and how."""

  # Names of tasks, groups or tags.
  tasks: Sequence[str]
  # Number of solved examples in a prompt; None is that of each task.
  num_fewshot: int | None = None
  # Number of examples of each task, or below 1 their fraction; None is all.
  limit: float | None = None
  # Folder with tasks of the user, *.yaml.
  include_path: str | None = None
  # Turns prompts into conversations; None leaves them as they are.
  chat_template: pax_fiddle.Config[chat_templates.ChatTemplate] | None = None


class LmEvalProgram(decode.SingleTaskDecodeProgram):
  """Evaluates a LanguageModel on tasks of lm-evaluation-harness.

  The input has the tokenizer, the batch size and the length of rows; its text
  is not read. Metrics are those of the harness, `<task>/<metric>`.

  References:
    https://github.com/EleutherAI/lm-evaluation-harness
  """

  def __init__(
    self,
    input_p: pax_fiddle.Config[packed_text.TextLmInput],
    settings: LmEvalSettings,
  ):
    """Takes the Config of the input, and the tasks.

    Raises:
      ValueError: The package `lm_eval` is not installed.
    """
    super().__init__(input_p)
    self._settings = settings
    if importlib.util.find_spec('lm_eval') is None:
      raise ValueError(
        f'LM_EVAL_TASKS={list(settings.tasks)} needs the package lm_eval, which'
        ' is not installed; pip install pax-jax[lm_eval]'
      )

  def setup(
    self,
    task: tasks_lib.SingleTask,
    partitioner: partitioning.Partitioner,
    job_log_dir: str | pathlib.Path,
    decode_prng_seed: jax.Array,
    output_pickle: bool = True,
    enable_summary_writer: bool = True,
  ) -> None:
    """Builds the input and finds the tasks; call it once, before `run`.

    Args:
      task: The task whose model is evaluated.
      partitioner: The partitioner of the task.
      job_log_dir: The directory of the job; outputs go to its `decoder_out`.
      decode_prng_seed: Not used.
      output_pickle: Not used; answers are written as JSON.
      enable_summary_writer: Whether the program may write summaries.

    Raises:
      ValueError: The model is no causal language model, or the harness does not
        know a task.
    """
    # Most jobs do not need it.
    from praxis.layers import models

    model = task.model
    if (
      not isinstance(model, models.LanguageModel)
      or model.model_type != models.LanguageModelType.CAUSAL
    ):
      raise ValueError(
        'LM_EVAL_TASKS needs a causal LanguageModel, got'
        f' {type(model).__name__}; leave LM_EVAL_TASKS empty'
      )
    self._tasks = _task_manager(self._settings)
    super().setup(
      task,
      partitioner,
      job_log_dir,
      decode_prng_seed,
      output_pickle,
      enable_summary_writer,
    )

  def run(
    self, state: program.TrainState, train_step: int
  ) -> program.DecodeProgramOutput:
    """Evaluates the tasks; writes the results and each example."""
    import lm_eval

    from pax.programs.lm_evaluation import harness_model, token_model

    inp = cast('packed_text.TextLmInput', self.input)
    num_batches = 0

    def before_batch() -> None:
      nonlocal num_batches
      self.before_batch(num_batches)
      num_batches += 1

    model = token_model.TokenModel(
      partitioner=self._partitioner,
      state=state,
      inp=inp,
      max_length=inp.seq_len,
      key=self._key,
      before_batch=before_batch,
    )
    chat_template = None
    if self._settings.chat_template is not None:
      chat_template = self._settings.chat_template.Instantiate()
    results = lm_eval.simple_evaluate(
      harness_model.HarnessModel(model, inp.fitted_tokenizer, chat_template),
      tasks=list(self._settings.tasks),
      num_fewshot=self._settings.num_fewshot,
      limit=self._settings.limit,
      task_manager=self._tasks,
      apply_chat_template=chat_template is not None,
      # Generators of the process are the user's.
      random_seed=None,
      numpy_random_seed=None,
      torch_random_seed=None,
    )
    metrics = {}
    # Other processes may get no results, such as those with a LOCAL_RANK.
    if jax.process_index() == 0:
      metrics = dict(_metrics(results['results']))
      self._write_outputs(results, train_step)
    metrics = metric_accumulator.broadcast_json_from_first_process(metrics)
    output = program.DecodeProgramOutput(
      state,
      processed_decode_metrics=metrics,
      num_decode_steps=num_batches,
      scalars={f'{_PREFIX}{name}': value for name, value in metrics.items()},
    )
    if not self.is_reported:
      self._write_summaries(
        train_step, output.scalars, f'decode_test_{self.input.name}'
      )
    return output

  def headline_metrics(
    self, output: program.DecodeProgramOutput
  ) -> Mapping[str, float]:
    """Returns the metrics of the tasks, or of the groups, of the settings."""
    metrics = output.processed_decode_metrics or {}
    named = {
      name: value
      for name, value in metrics.items()
      if name.partition('/')[0] in self._settings.tasks
      and not name.partition('/')[2].endswith('_stderr')
    }
    return named or metrics

  def _write_outputs(self, results: dict[str, Any], step: int) -> None:
    examples = [
      (None, {'task': task, **example})
      for task, samples in results.pop('samples').items()
      for example in samples
    ]
    file = io_utils.output_file(
      self._job_log_dir, io_utils.EvaluationMode.DECODE, self.input.name, step
    )
    with self.writing(file):
      io_utils.write_key_value_pairs(file, examples, write_pickle=False)
      content = json.dumps(results, indent=1, default=str)
      atomic_file.write_text(file.with_suffix('.json'), content)


def _task_manager(settings: LmEvalSettings) -> Any:
  """Returns the tasks that the harness knows.

  Raises:
    ValueError: It does not know one of the settings.
  """
  from lm_eval import tasks

  manager = tasks.TaskManager(include_path=settings.include_path)
  unknown = [x for x in settings.tasks if not manager.match_tasks([x])]
  if unknown:
    raise ValueError(
      'LM_EVAL_TASKS must be tasks of lm-evaluation-harness, got'
      f' {", ".join(unknown)}; `lm_eval ls tasks` lists them, and'
      ' LM_EVAL_INCLUDE_PATH is a folder with others'
    )
  return manager


def _metrics(
  results: Mapping[str, Mapping[str, Any]],
) -> Iterator[tuple[str, float]]:
  """Yields name and value of the metrics in the results of tasks."""
  for task, values in results.items():
    for key, value in values.items():
      metric, _, filter_name = key.partition(',')
      if not filter_name or isinstance(value, str | bool):
        continue
      # Most tasks have one filter, `none`.
      suffix = '' if filter_name == 'none' else f'_{filter_name}'
      yield f'{task}/{metric}{suffix}', float(value)
