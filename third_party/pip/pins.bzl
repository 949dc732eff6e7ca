"""The locks of the repositories of Python packages in WORKSPACE."""

LOCK = "//third_party/pip:requirements_lock.txt"
DATA_LOCK = "//third_party/pip:requirements_data_lock.txt"
CUDA_LOCK = "//third_party/pip:requirements_cuda_lock.txt"
DOCS_LOCK = "//third_party/pip:requirements_docs_lock.txt"
HEADERS_LOCK = "//third_party/pip:requirements_headers_lock.txt"
SEQIO_LOCK = "//third_party/pip:requirements_seqio_lock.txt"
SEQIO_EXCLUDED = "//third_party/pip:requirements_seqio_excluded.in"
TPU_LOCK = "//third_party/pip:requirements_tpu_lock.txt"

# BUILD text to add to a wheel's package, e.g. for the headers it ships.
ANNOTATIONS = {
    "//third_party/pip/annotations:nanobind.BUILD": "nanobind",
    "//third_party/pip/annotations:pybind11.BUILD": "pybind11",
}

HEADERS_ANNOTATIONS = {
    "//third_party/pip/annotations:jaxlib.BUILD": "jaxlib",
}

# Of CUDA_LOCK: nvcc, its headers, and the libraries that kernels link.
CUDA_TOOLKIT = [
    "nvidia_cuda_cccl",
    "nvidia_cuda_crt",
    "nvidia_cuda_nvcc",
    "nvidia_cuda_runtime",
    "nvidia_nvvm",
]

CUDA_TOOLKIT_ANNOTATIONS = {
    "//third_party/pip/annotations:cuda_toolkit.BUILD": "all",
}

# What requirements.in lists for running, not for building and testing.
RUNTIME = [
    "absl_py",
    "backports_zstd",
    "etils",
    "fiddle",
    "flax",
    "fsspec",
    "google_crc32c",
    "grain",
    "isal",
    "jax",
    "jaxlib",
    "jaxtyping",
    "matplotlib",
    "ml_dtypes",
    "numpy",
    "optax",
    "orbax_checkpoint",
    "pillow",
    "rich",
    "sentencepiece",
    "tensorboardx",
    "tensorstore",
]
