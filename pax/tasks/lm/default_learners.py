# SPDX-License-Identifier: Apache-2.0
"""Default learners of language models: Adam and sharded Adafactor.

The learning rate of both rises linearly, stays constant until `decay_start`,
and decays exponentially to a tenth at `decay_end`.
"""

from __future__ import annotations

from pax import learners, tasks_lib
from praxis import optimizers, pax_fiddle, schedules

Config = pax_fiddle.Config
TaskConfig = Config[tasks_lib.SingleTask]

# Ends of the paths of variables that are no matrices: scales of norms and
# experts, biases, also of attention logits and experts, rates and skips of
# recurrences.
_VECTORS = (
  r'.*/(a_log|b|bi_\w+|bo|\w*bias|\w*scale|sinks|skip|\w*magnitude_delta|wrb)$'
)


def set_default_adam(
  task_p: TaskConfig,
  learning_rate: float | None,
  weight_decay: float,
  warmup_steps: int = 4000,
  decay_start: int = 4001,
  decay_end: int = 300000,
) -> None:
  """Sets the learner of a task to Adam.

  Args:
    task_p: The task.
    learning_rate: The peak learning rate; None leaves it to the caller.
    weight_decay: The decoupled weight decay.
    warmup_steps: Steps in which the learning rate rises from 0 to its peak.
    decay_start: Step at which the decay starts.
    decay_end: Step at which the decay ends.
  """
  adam_p = Config(
    optimizers.Adam,
    clip_gradient_norm_to_value=5.0,
    weight_decay=weight_decay,
    beta1=0.9,
    beta2=0.99,
  )
  schedule_p = _exponential_decay(warmup_steps, decay_start, decay_end)
  _set_learner(task_p, adam_p, learning_rate, schedule_p)


def set_default_adafactor(
  task_p: TaskConfig,
  learning_rate: float | None,
  weight_decay: float,
  warmup_steps: int = 4000,
  decay_start: int = 4001,
  decay_end: int = 100000,
  clip_gradient_norm_to_value: float = 5.0,
) -> None:
  """Sets the learner of a task to sharded Adafactor.

  Args:
    task_p: The task.
    learning_rate: The peak learning rate; None leaves it to the caller.
    weight_decay: The decoupled weight decay.
    warmup_steps: Steps in which the learning rate rises from 0 to its peak.
    decay_start: Step at which the decay starts.
    decay_end: Step at which the decay ends.
    clip_gradient_norm_to_value: Maximum global norm of the gradients.
  """
  adafactor_p = Config(
    optimizers.ShardedAdafactor,
    clip_gradient_norm_to_value=clip_gradient_norm_to_value,
    weight_decay=weight_decay,
    beta1=0.9,
    decay_method='adam',
    decay_adam=0.99,
  )
  schedule_p = _exponential_decay(warmup_steps, decay_start, decay_end)
  _set_learner(task_p, adafactor_p, learning_rate, schedule_p)


def set_matrix_decay(task_p: TaskConfig, weight_decay: float | None) -> None:
  """Sets the weight decay of AdamW, which norms and biases do not have.

  Args:
    task_p: The task of a model of Hugging Face.
    weight_decay: The weight; None or 0: no decay.
  """
  by_path = {'.*': weight_decay, _VECTORS: 0.0} if weight_decay else None
  task_p.train.learner.optimizer.set(
    weight_decay=0.0, decoupled_weight_decay=by_path
  )


def _exponential_decay(
  warmup_steps: int, decay_start: int, decay_end: int
) -> Config[schedules.BaseSchedule]:
  return Config(
    schedules.LinearRampupExponentialDecay,
    warmup_steps=warmup_steps,
    decay_start=decay_start,
    decay_end=decay_end,
    max=1.0,
    min_ratio=0.1,
  )


def _set_learner(
  task_p: TaskConfig,
  optimizer_p: Config[optimizers.BaseOptimizer],
  learning_rate: float | None,
  schedule_p: Config[schedules.BaseSchedule],
) -> None:
  optimizer_p.set(learning_rate=learning_rate, lr_schedule=schedule_p)
  task_p.train.learner = Config(
    learners.Learner, loss_name='total_loss', optimizer=optimizer_p
  )
