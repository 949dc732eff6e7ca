# SPDX-License-Identifier: Apache-2.0
"""Flags of paxml that Pax ignores or does not support, with reasons."""

from __future__ import annotations

_NO_TF_DATA = (
  'inputs do not use TensorFlow, so there is no tf.data service; each host'
  ' reads its own share of the data'
)
_NO_SEARCH_SERVICE = (
  'there is no search service; --study=local runs the study in this process'
)

FLAGS: dict[str, str] = {
  'controller_mode': _NO_SEARCH_SERVICE,
  'enable_auto_sharding': (
    'JAX removed automatic shardings; the experiment declares them, and'
    ' --set ICI_MESH_SHAPE=... fits them to other devices'
  ),
  'fdl_help': 'see --help, and docs/tools.md on --fdl',
  'jax_backend_target': (
    'JAX removed remote backends; choose a backend with JAX_PLATFORMS'
  ),
  'jax_xla_backend': (
    'JAX removed this option; choose a backend with JAX_PLATFORMS'
  ),
  'maybe_use_persistence_checkpointing': (
    'this checkpoint format exists at Google only; checkpoints are'
    ' asynchronous by default'
  ),
  'pythia_port': _NO_SEARCH_SERVICE,
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

_LOGS = 'Logs go to stderr, and to logs/ in --job_log_dir.'
# Boolean flags without a meaning here: {name: (default, reason)}.
IGNORED: dict[str, tuple[bool, str]] = {
  'alsologtostderr': (False, _LOGS),
  'enforce_restore_shape_check': (True, 'Shapes are always checked.'),
  'logtostderr': (False, _LOGS),
}

# Values of --mode of paxml, with reasons.
MODES: dict[str, str] = {
  'tf_data_service_dispatcher': _NO_TF_DATA,
  'tf_data_service_worker': _NO_TF_DATA,
}
