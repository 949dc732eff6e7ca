# SPDX-License-Identifier: Apache-2.0
"""Search spaces of experiments in PyGlove."""

from __future__ import annotations

import importlib
from typing import Any

from pax import base_experiment
from pax.tuning import algorithms, points, space
from pax.tuning.interfaces import (
  BaseAlgorithm,
  BaseEarlyStoppingPolicy,
  Stopper,
)
from praxis import base_hyperparams

BaseExperiment = base_experiment.BaseExperiment


def load_pyglove() -> Any:
  """Returns the module `pyglove`.

  Raises:
    ValueError: PyGlove is not installed.
  """
  try:
    return importlib.import_module('pyglove')
  except ModuleNotFoundError as error:
    raise ValueError(
      f'tuning_lib needs the package pyglove: {error}; run `pip install'
      " 'pax-jax[tune]'`, or search with --study=local, which needs no package"
    ) from error


def get_search_space(experiment_config: BaseExperiment) -> Any:
  """Returns the space of the hyper primitives that an experiment evaluates.

  These are the primitives that its task reads, its data sets with
  `enable_dataset_tuning`, its partitioner and train programs with
  `enable_partitioner_tuning` and `enable_train_programs_tuning`; and all its
  search points (`automl.oneof`).

  Returns:
    A `pg.hyper.DynamicEvaluationContext`.

  Raises:
    ValueError: PyGlove is not installed, or `automl.parameter_sweep` sweeps
      rows of constants and the experiment has other primitives.
  """
  pg = load_pyglove()
  traced = pg.hyper.trace(
    lambda: _evaluate_all(experiment_config), require_hyper_name=True
  )
  names = list(traced.hyper_dict)
  if space.COMBINED_DECISION_ATTR in names and len(names) > 1:
    names.remove(space.COMBINED_DECISION_ATTR)
    swept = getattr(experiment_config, space.COMBINED_DECISION_POINT_NAMES)
    raise ValueError(
      f'Found extra tuning parameters ({names}) beyond the parameters '
      f'({list(swept)}) that automl.parameter_sweep of '
      f'{type(experiment_config).__name__} sweeps; give them values, or add '
      'them to its rows'
    )
  return traced


def with_chosen_constants(
  experiment: type[BaseExperiment],
) -> type[BaseExperiment]:
  """Returns a subclass whose search points have the values of the trial.

  Hyper primitives of PyGlove are unchanged: they have their values where they
  are read.
  """
  pg = load_pyglove()
  free = space.search_points(experiment)
  constants: dict[str, Any] = {}
  if rows := getattr(experiment, space.COMBINED_DECISION_ATTR, None):
    names = getattr(experiment, space.COMBINED_DECISION_POINT_NAMES)
    row = pg.oneof(list(rows), name=space.COMBINED_DECISION_ATTR)
    constants.update(zip(names, row, strict=True))
  for name, point in free.items():
    if name not in constants and point is _static(experiment, name):
      constants[name] = _choose(pg, name, point)
  return type(
    experiment.__name__,
    (experiment,),
    constants | {'__module__': experiment.__module__},
  )


def build_algorithm(algorithm: BaseAlgorithm) -> Any:
  """Returns the `pg.DNAGenerator` of an algorithm.

  Raises:
    ValueError: the algorithm returns something else.
  """
  pg = load_pyglove()
  match algorithm:
    case algorithms.Sweeping():
      return pg.geno.Sweeping()
    case algorithms.RandomSearch():
      return pg.geno.Random(seed=algorithm.seed)
    case algorithms.RegularizedEvolution():
      return pg.evolution.regularized_evolution(
        pg.evolution.mutators.Uniform()
        if algorithm.mutator is algorithms.mutate_one
        else algorithm.mutator,
        population_size=algorithm.population_size,
        tournament_size=algorithm.tournament_size,
        seed=algorithm.seed,
      )
  generator = algorithm()
  if not isinstance(generator, pg.DNAGenerator):
    raise ValueError(
      f'{type(algorithm).__name__}() must be a pg.DNAGenerator for '
      f'tuning_lib.tune, got {type(generator).__name__}; return one, or search '
      'with --study=local'
    )
  return generator


def build_early_stopping_policy(policy: BaseEarlyStoppingPolicy) -> Any:
  """Returns the `pg.tuning.EarlyStoppingPolicy` of a policy."""
  pg = load_pyglove()
  stopper = policy()
  if isinstance(stopper, pg.tuning.EarlyStoppingPolicy):
    return stopper
  return _stopper_policy(pg, stopper)


def _stopper_policy(pg: Any, stopper: Stopper) -> Any:
  class StopperPolicy(pg.tuning.EarlyStoppingPolicy):
    """Asks the stopper about the measurements of each trial."""

    def _on_bound(self) -> None:
      super()._on_bound()
      self._histories: dict[int, list[tuple[int, dict[str, float]]]] = {}

    def should_stop_early(self, trial: Any) -> bool:
      """Returns whether the newest measurement ends the trial."""
      history = [
        (m.step, dict(m.metrics) | {'reward': m.reward})
        for m in trial.measurements
      ]
      is_new = len(history) > len(self._histories.get(trial.id, ()))
      self._histories[trial.id] = history
      others = [h for id_, h in self._histories.items() if id_ != trial.id]
      return is_new and stopper(history, others)

  return StopperPolicy()


def _evaluate_all(experiment_config: BaseExperiment) -> None:
  """Evaluates what the search of the experiment chooses."""
  experiment = experiment_config
  if space.search_points(type(experiment)):
    experiment = with_chosen_constants(type(experiment))()
  try:
    search = experiment.search()
  except NotImplementedError:
    search = None
  if search is not None and search.enable_partitioner_tuning:
    experiment.partitioner()
  if search is not None and search.enable_train_programs_tuning:
    experiment.train_programs()
  experiment.task()
  if search is not None and search.enable_dataset_tuning:
    # Mixtures of data sets evaluate their weights when they are built.
    for dataset in experiment.datasets():
      if dataset.is_training:
        base_hyperparams.instantiate(dataset)
    experiment.decode_datasets()


def _static(experiment: type, name: str) -> Any:
  """Returns the attribute in the body of the class that defines it."""
  return next(vars(c)[name] for c in experiment.__mro__ if name in vars(c))


def _choose(pg: Any, name: str, point: points.SearchPoint) -> Any:
  if isinstance(point, points.FloatV):
    return pg.floatv(
      float(point.min_value),
      float(point.max_value),
      scale=point.scale,
      name=name,
    )
  return pg.oneof(list(point.values or ()), name=name)
