# SPDX-License-Identifier: Apache-2.0
"""Flags of paxml that do nothing here, and why."""

from __future__ import annotations

_NO_TF_DATA = (
  'inputs here need no TensorFlow, so there is no tf.data service; every host'
  ' reads its own share of the data'
)
_NO_SEARCH_SERVICE = (
  'there is no search service to talk to; --study=local holds the study itself'
)

REFUSED: dict[str, str] = {
  'controller_mode': _NO_SEARCH_SERVICE,
  'enable_auto_sharding': (
    'JAX has given up AUTO shardings; they are those that the experiment'
    ' declares, and --set ICI_MESH_SHAPE=... fits them to other devices'
  ),
  'fdl_help': 'see --help, and docs/tools.md on --fdl',
  'jax_backend_target': (
    'JAX has given up remote backends; set JAX_PLATFORMS to choose one'
  ),
  'jax_xla_backend': (
    'JAX has given up this option; set JAX_PLATFORMS to choose a backend'
  ),
  'maybe_use_persistence_checkpointing': (
    'this kind of checkpoint never left Google; checkpoints are asynchronous'
    ' already'
  ),
  'pythia_port': _NO_SEARCH_SERVICE,
  'tfds_data_dir': (
    'no input here reads TFDS; --set the files of the input instead'
  ),
  'tuner_group': _NO_SEARCH_SERVICE,
  **dict.fromkeys(
    (
      'tf_data_service_address',
      'tf_data_service_data_transfer_address',
      'tf_data_service_data_transfer_protocol',
      'tf_data_service_dispatcher_address',
      'tf_data_service_fault_tolerant_mode',
      'tf_data_service_port',
      'tf_data_service_work_dir',
      'tf_data_service_worker_address',
      'tf_data_service_worker_addresses',
    ),
    _NO_TF_DATA,
  ),
}

# Values of --mode that paxml has and that are refused too.
MODES: dict[str, str] = {
  'tf_data_service_dispatcher': _NO_TF_DATA,
  'tf_data_service_worker': _NO_TF_DATA,
}
