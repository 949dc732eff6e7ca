# SPDX-License-Identifier: Apache-2.0
"""The tuning loop of paxml: the trials of a search, in one process.

`--study=local` (pax.studies) is the search of Pax itself: a process for each
trial, and a study that continues after a crash.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
from absl import logging

from pax.checkpoints.loading_rules import CheckpointLoadingRules
from pax.paxml_api import pyglove_space
from pax.paxml_api.trial_directories import TrialDirectoryNameGenerator
from pax.paxml_api.trial_early_stopping import EarlyStoppingFn
from pax.paxml_api.tuning import compressed
from pax.programs import early_stopping
from pax.tuning import aggregators, algorithms, interfaces, space
from praxis import base_hyperparams

BaseExperiment = pyglove_space.BaseExperiment
# (experiment, work unit, job_log_dir, early stopping function) -> None.
TrialFn = Callable[
  [BaseExperiment, Any, pathlib.Path, early_stopping.EarlyStoppingFn], None
]
_CONFIG_FORMAT_VERSION = 2.0


def tune(
  trial_fn: TrialFn,
  experiment_config: BaseExperiment,
  work_unit: Any,
  job_log_dir: pathlib.Path,
  study: str | None = None,
  pythia_port: int | None = None,
  is_metric_reporting_role: bool = True,
  tuner_group: str | None = None,
  max_num_trials: int | None = None,
  controller_mode: str = 'auto',
  running_mode: str = 'train',
) -> None:
  """Runs the trials of the search of an experiment, one after the other.

  Args:
    trial_fn: Runs a trial: an experiment whose choices have values.
    experiment_config: The experiment; its `search()` defines the search.
    work_unit: A `clu.platform.WorkUnit`, which gets the files of the study as
      artifacts; None gets none.
    job_log_dir: Directory of the study, a path like those of pathlib;
      `TrialDirectoryNameGenerator` names those of the trials.
    study: Name of the study. Calls in this process with the same name, which
      starts with 'local', share the trials.
    pythia_port: Unused: there is no search service.
    is_metric_reporting_role: Whether this job reports metrics; of the jobs of a
      `tuner_group` one does.
    tuner_group: Jobs of the same group get the same trial; None: every job
      gets another.
    max_num_trials: Maximum number of trials; None is that of the search.
    controller_mode: 'auto'; 'secondary' only runs trials. 'primary' needs a
      search service.
    running_mode: Mode of this job: 'train', 'eval', 'decode', ...

  Raises:
    ValueError: PyGlove is not installed, nothing is to be searched, or this
      job does not compute the metrics that the reward needs.
    NotImplementedError: `controller_mode` is 'primary'.
  """
  del pythia_port
  pg = pyglove_space.load_pyglove()
  if controller_mode == 'primary':
    raise NotImplementedError(
      'Dedicated controller is not supported: there is no search service;'
      " call tune with controller_mode='auto'"
    )
  search = _Search.of(experiment_config)
  _check_running_mode(search.reward, running_mode, is_metric_reporting_role)
  traced = pyglove_space.get_search_space(experiment_config)
  if traced.dna_spec.is_constant:
    raise ValueError(
      'Aborting tuning: there is no tunable parameters in experiment '
      f'{type(experiment_config).__name__!r}; write pg.oneof([...], name=...) '
      'or automl.oneof([...]) in place of a value'
    )
  num_trials = max_num_trials or search.hparams.max_num_trials
  if traced.dna_spec.space_size != -1:  # -1: a choice of floats.
    num_trials = min(num_trials, traced.dna_spec.space_size)
  if isinstance(job_log_dir, str):
    job_log_dir = pathlib.Path(job_log_dir)
  _write_descriptions(job_log_dir, work_unit, traced.dna_spec, search)
  sub_experiments = experiment_config.sub_experiments()
  names = getattr(experiment_config, space.COMBINED_DECISION_POINT_NAMES, None)
  directories = TrialDirectoryNameGenerator(job_log_dir, traced, names)
  is_local_study = study is not None and study.startswith('local')
  for example, feedback in pg.sample(
    traced,
    search.algorithm,
    num_trials,
    early_stopping_policy=search.early_stopping,
    group=tuner_group,
    name=study if is_local_study else None,
    **({} if controller_mode == 'auto' else {'is_chief': False}),
  ):
    logging.info('trial %d of group %s', feedback.id, tuner_group)
    with example():
      directory = directories.dirname(feedback.id)
      if (
        search.hparams.add_experiment_config_to_metadata
        and is_metric_reporting_role
        and jax.process_index() == 0
      ):
        _add_experiment_config(sub_experiments, feedback)
      _run_trial(
        sub_experiments,
        search,
        feedback,
        is_metric_reporting_role,
        functools.partial(_call_trial_fn, trial_fn, work_unit, directory),
      )
  logging.info('all trials of study %r are complete', study)


@dataclasses.dataclass(frozen=True)
class _Search:
  """The parts of a search."""

  hparams: interfaces.SearchHParams
  reward: interfaces.BaseReward | None
  # The `pg.DNAGenerator`.
  algorithm: Any
  # The `pg.tuning.EarlyStoppingPolicy`, or None.
  early_stopping: Any
  aggregator: interfaces.CrossStepMetricAggregator

  @classmethod
  def of(cls, experiment: BaseExperiment) -> _Search:
    """Builds the search of an experiment."""
    build = base_hyperparams.instantiate
    hparams = experiment.search()
    algorithm = hparams.search_algorithm or algorithms.Sweeping.config()
    aggregator = (
      hparams.cross_step_metric_aggregator
      or aggregators.LastReportedMetricValues.config()
    )
    reward, policy = hparams.search_reward, hparams.early_stopping
    return cls(
      hparams,
      None if reward is None else build(reward),
      pyglove_space.build_algorithm(build(algorithm)),
      policy and pyglove_space.build_early_stopping_policy(build(policy)),
      build(aggregator),
    )


def _run_trial(
  sub_experiments: Mapping[str, type[BaseExperiment]],
  search: _Search,
  feedback: Any,
  is_metric_reporting_role: bool,
  run: Callable[[BaseExperiment, EarlyStoppingFn], None],
) -> None:
  """Runs the experiments of a trial until it is complete."""
  errors = [FloatingPointError, *(search.hparams.errors_to_skip or ())]
  last = len(sub_experiments) - 1
  for index, (id_, experiment) in enumerate(sub_experiments.items()):
    early_stopping_fn = EarlyStoppingFn(
      feedback=feedback,
      sub_experiment_id=id_,
      reward_fn=search.reward,
      cross_step_metric_aggregator=search.aggregator,
      is_metric_reporting_role=is_metric_reporting_role,
      is_last_experiment=index == last,
      tuning_step_start=index * aggregators.SUB_EXPERIMENT_STEP_OFFSET,
      treats_early_stopped_trials_as_done=(
        search.hparams.treats_early_stopped_trials_as_done
      ),
      train_to_end=search.hparams.train_to_end,
    )
    with feedback.skip_on_exceptions(errors):
      chosen = pyglove_space.with_chosen_constants(experiment)
      run(_warm_start(chosen, feedback)(), early_stopping_fn)
    if feedback.get_trial().status == 'COMPLETED':
      return


def _call_trial_fn(
  trial_fn: TrialFn,
  work_unit: Any,
  directory: pathlib.Path,
  experiment: BaseExperiment,
  early_stopping_fn: EarlyStoppingFn,
) -> None:
  trial_fn(experiment, work_unit, directory, early_stopping_fn)


def _warm_start(
  experiment: type[BaseExperiment], feedback: Any
) -> type[BaseExperiment]:
  """Returns a subclass that starts from the checkpoint of the trial, if any."""
  checkpoint_path = feedback.checkpoint_to_warm_start_from
  if not checkpoint_path:
    return experiment

  # Any: no type is known of a base class that is an argument.
  base: Any = experiment

  class WarmStarted(base):
    """The experiment, initialized from a checkpoint."""

    def task(self) -> Any:
      task_p = super().task()
      rules = CheckpointLoadingRules(
        task_p=task_p,
        load_rules=[('(.*)', '{}')],
        load_step=False,
        load_opt_states=True,
        input_specs_provider_p=self.get_input_specs_provider_params(),
      )
      warm_started = task_p.clone()
      warm_started.train.init_from_checkpoint_rules = {checkpoint_path: rules}
      return warm_started

  return WarmStarted


def _check_running_mode(
  reward: interfaces.BaseReward | None, running_mode: str, is_reporting: bool
) -> None:
  if reward is None or not is_reporting:
    return
  if reward.needs_train and running_mode != 'train':
    raise ValueError(
      'Tuning uses training metrics but the reporting role is '
      f'{running_mode!r}; report from the training job'
    )
  if reward.needs_decode and running_mode not in ('train', 'decode'):
    raise ValueError(
      'Tuning uses decode metrics but the reporting role is '
      f'{running_mode!r}; report from the training or the decoding job'
    )


def _write_descriptions(
  directory: pathlib.Path, work_unit: Any, dna_spec: Any, search: _Search
) -> None:
  """Writes what the study searches and how, once."""
  directory.mkdir(parents=True, exist_ok=True)
  descriptions = {
    'search_space': ('search_space.txt', dna_spec),
    'search_algorithm': ('search_algorithm.txt', search.algorithm),
    'early_stopping_policy': (
      'early_stopping_policy_debug_file.txt',
      search.early_stopping,
    ),
  }
  for name, (file_name, value) in descriptions.items():
    if value is None:
      continue
    path = directory / file_name
    if not path.exists():
      path.write_text(str(value))
    if work_unit is not None:
      work_unit.create_artifact(_file_artifact(), str(path), name)


def _file_artifact() -> Any:
  """Returns `clu.platform.ArtifactType.FILE`, its name without clu."""
  try:
    return importlib.import_module('clu.platform').ArtifactType.FILE
  except ModuleNotFoundError:
    return 'FILE'


def _add_experiment_config(
  sub_experiments: Mapping[str, type[BaseExperiment]], feedback: Any
) -> None:
  """Adds the configuration of a trial to its metadata."""
  text = base_hyperparams.nested_struct_to_text
  configs: dict[str, dict[str, Any]] = {
    'datasets': {},
    'decode_datasets': {},
    'task': {},
  }
  for id_, cls in sub_experiments.items():
    experiment = pyglove_space.with_chosen_constants(cls)()
    configs['datasets'][id_] = [text(p) for p in experiment.datasets()]
    configs['decode_datasets'][id_] = [
      text(p) for p in experiment.decode_datasets()
    ]
    configs['task'][id_] = text(experiment.task())
  for key, value in configs.items():
    metadata = {
      'format_version': _CONFIG_FORMAT_VERSION,
      'source': 'pax',
      'config': compressed(value),
    }
    feedback.set_metadata(f'experiment_config:{key}', metadata, per_trial=True)
