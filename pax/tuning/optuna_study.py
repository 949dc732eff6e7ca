# SPDX-License-Identifier: Apache-2.0
"""Optuna's record of a study, in the directory of the study.

Samplers and pruners of Optuna keep their state in it, so that a study continues
with them after SIGKILL. `study.jsonl` decides which trials there are, and the
record follows it.
"""

from __future__ import annotations

import dataclasses
import math
import os
import pathlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from pax.tuning import points
from pax.tuning.space import Decision, Settings, Space
from pax.tuning.trial import Status, Trial

if TYPE_CHECKING:
  import optuna

JOURNAL_FILE = 'optuna.journal'

_NAME = 'pax'
# Attributes of Optuna's trials: the id of ours, and whether a pruner ended it.
_ID = 'pax_trial'
_PRUNED = 'pax_pruned'


class OptunaStudy:
  """The trials of a study, as those of Optuna."""

  def __init__(self, directory: str):
    """Opens or creates the record.

    Raises:
      ValueError: Optuna is not installed.
    """
    self._optuna = load_optuna()
    path = pathlib.Path(directory, JOURNAL_FILE)
    _cut_truncated_line(path)
    journal = self._optuna.storages.journal
    self._storage = journal.JournalStorage(
      journal.JournalFileBackend(str(path), lock_obj=_NoLock())
    )
    self.study: optuna.Study = self._optuna.create_study(
      storage=self._storage,
      study_name=_NAME,
      # Pax maximizes rewards.
      direction='maximize',
      load_if_exists=True,
    )
    self._study_id = self._storage.get_study_id_from_name(_NAME)

  def propose(self, space: Space, trials: Sequence[Trial]) -> Settings:
    """Returns the settings that the sampler proposes for the next trial.

    Args:
      space: the constants.
      trials: all trials, which are recorded first.
    """
    parameters = [_Parameter.of(decision) for decision in space.decisions]
    self._record(parameters, trials)
    next_id = max((trial.id for trial in trials), default=0) + 1
    values = self._unrecorded_values(parameters, next_id)
    if values is None:
      asked = self.study.ask({p.name: p.distribution for p in parameters})
      asked.set_user_attr(_ID, next_id)
      values = asked.params
    settings: Settings = {}
    for parameter in parameters:
      settings |= parameter.settings(values[parameter.name])
    return settings

  def should_prune(self, id: int, values: Iterable[tuple[int, float]]) -> bool:
    """Returns whether the pruner ends a running trial; records its values.

    Args:
      id: of the trial.
      values: (step, value to maximize), in order.

    Raises:
      ValueError: the trial was not proposed by Optuna.
    """
    found = self._by_id().get(id)
    if found is None:
      raise ValueError(
        f'trial {id} was not proposed by Optuna, whose pruners need its'
        ' samplers: set search_algorithm to OptunaSearch, or --sampler'
      )
    trial_id = self._trial_id(found)
    for step, value in values:
      known = found.intermediate_values.get(step)
      # Another input may have changed the value since it was recorded.
      if known is None or (known != value and not math.isnan(value)):
        self._storage.set_trial_intermediate_value(trial_id, step, value)
    is_pruned = self.study.pruner.prune(
      self.study, self._storage.get_trial(trial_id)
    )
    if is_pruned:
      self._storage.set_trial_user_attr(trial_id, _PRUNED, True)
    return is_pruned

  def _record(
    self, parameters: Sequence[_Parameter], trials: Sequence[Trial]
  ) -> None:
    """Records trials that are new, and the ends of those that have ended."""
    by_id = self._by_id()
    for trial in trials:
      found = by_id.get(trial.id)
      if found is None:
        self._add(parameters, trial)
      elif not found.state.is_finished() and trial.status is not Status.RUNNING:
        state, value = self._result(trial, found)
        self.study.tell(found.number, value, state=state)

  def _add(self, parameters: Sequence[_Parameter], trial: Trial) -> None:
    """Records a trial of another algorithm, or of a record that is lost."""
    create_trial = self._optuna.trial.create_trial
    state, value = self._result(trial, None)
    self.study.add_trial(
      create_trial(
        state=state,
        value=value,
        params={p.name: p.value(trial.settings) for p in parameters},
        distributions={p.name: p.distribution for p in parameters},
        user_attrs={_ID: trial.id},
      )
    )

  def _result(
    self, trial: Trial, found: optuna.trial.FrozenTrial | None
  ) -> tuple[Any, float | None]:
    """The state of a trial, and its value if that counts."""
    states = self._optuna.trial.TrialState
    if trial.status is Status.RUNNING:
      return states.RUNNING, None
    if found is not None and _PRUNED in found.user_attrs:
      return states.PRUNED, None
    if trial.status is Status.DONE:
      return states.COMPLETE, trial.reward
    return states.FAIL, None

  def _unrecorded_values(
    self, parameters: Sequence[_Parameter], next_id: int
  ) -> dict[str, Any] | None:
    """The values of a proposal that an earlier process did not record.

    It was killed between the proposal and the record in `study.jsonl`.
    """
    running = self._optuna.trial.TrialState.RUNNING
    names = {parameter.name for parameter in parameters}
    for found in self.study.get_trials(states=(running,)):
      if found.user_attrs.get(_ID, next_id) != next_id:
        continue
      if set(found.params) == names:
        trial_id = self._trial_id(found)
        self._storage.set_trial_user_attr(trial_id, _ID, next_id)
        return found.params
      self.study.tell(found.number, state=self._optuna.trial.TrialState.FAIL)
    return None

  def _by_id(self) -> dict[int, optuna.trial.FrozenTrial]:
    trials = self.study.get_trials()
    return {t.user_attrs[_ID]: t for t in trials if _ID in t.user_attrs}

  def _trial_id(self, trial: optuna.trial.FrozenTrial) -> int:
    """The id in the storage, which differs from the number."""
    return self._storage.get_trial_id_from_study_id_trial_number(
      self._study_id, trial.number
    )


@dataclasses.dataclass(frozen=True)
class _Parameter:
  """A decision as a parameter of Optuna."""

  decision: Decision
  distribution: Any

  @classmethod
  def of(cls, decision: Decision) -> _Parameter:
    distributions = load_optuna().distributions
    point = decision.point
    if isinstance(point, points.FloatV):
      found = distributions.FloatDistribution(
        point.min_value, point.max_value, log=point.scale != 'linear'
      )
    elif isinstance(point, points.IntV):
      found = distributions.IntDistribution(point.min_value, point.max_value)
    else:
      found = distributions.CategoricalDistribution(list(_choices(decision)))
    return cls(decision, found)

  @property
  def name(self) -> str:
    return ', '.join(self.decision.names)

  def settings(self, value: Any) -> Settings:
    """Returns the settings of a value of Optuna."""
    point = self.decision.point
    if isinstance(point, points.FloatV | points.IntV):
      return self.decision.settings(self._mirrored(value))
    return _choices(self.decision)[value]

  def value(self, settings: Settings) -> Any:
    """Returns the value of Optuna of the settings of all decisions."""
    point = self.decision.point
    own = {name: settings[name] for name in self.decision.names}
    if isinstance(point, points.FloatV):
      return self._mirrored(float(own[self.name]))
    return int(own[self.name]) if isinstance(point, points.IntV) else _text(own)

  def _mirrored(self, value: Any) -> Any:
    """The value at the other end of the interval, for the scale `rlog`."""
    point = self.decision.point
    if not isinstance(point, points.FloatV) or point.scale != 'rlog':
      return value
    # Rounding must not leave the interval.
    mirrored = point.min_value + point.max_value - value
    return min(max(mirrored, point.min_value), point.max_value)


class _NoLock:
  """Of the journal: the lock of the job directory admits one process."""

  def acquire(self) -> bool:
    return True

  def release(self) -> None:
    pass


def load_optuna() -> Any:
  """Returns the package; its messages go to the log of the job.

  Raises:
    ValueError: it is not installed.
  """
  try:
    import optuna
  except ModuleNotFoundError as e:
    raise ValueError(
      'this search needs Optuna: pip install "pax-jax[tune]"'
    ) from e
  optuna.logging.disable_default_handler()
  optuna.logging.enable_propagation()
  return optuna


def _choices(decision: Decision) -> dict[str, Settings]:
  """The settings of each value of a decision that is no interval, by text."""
  settings = map(decision.settings, decision.point.values or ())
  return {_text(choice): choice for choice in settings}


def _text(settings: Settings) -> str:
  return ', '.join(settings.values())


def _cut_truncated_line(path: pathlib.Path) -> None:
  """Removes the part of a line that a killed process wrote."""
  if path.exists():
    text = path.read_bytes()
    os.truncate(path, text.rfind(b'\n') + 1)
