"""The external repositories of this tree: of WORKSPACE, and of MODULE.bazel."""

load("//third_party/cc:cc.bzl", "local_cc")
load("//third_party/npm:npm.bzl", "npm_package")
load("//third_party/pip:pins.bzl", "ANNOTATIONS", "CUDA_LOCK", "CUDA_TOOLKIT", "CUDA_TOOLKIT_ANNOTATIONS", "DATA_LOCK", "DOCS_LOCK", "HEADERS_ANNOTATIONS", "HEADERS_LOCK", "LOCK", "SEQIO_EXCLUDED", "SEQIO_LOCK", "TPU_LOCK")
load("//third_party/pip:pip.bzl", "pip_repository")
load("//third_party/python:python.bzl", "local_python")

def repositories():
    """Declares all repositories; none is fetched before a target needs it."""
    local_python(name = "local_python")

    local_cc(name = "local_cc")

    pip_repository(
        name = "pypi",
        annotations = ANNOTATIONS,
        lock = LOCK,
    )

    # Of these only data files are read.
    pip_repository(
        name = "pypi_data",
        apparent_name = "pypi_data",
        data_only = True,
        lock = DATA_LOCK,
    )

    # XLA's headers for the extensions.
    pip_repository(
        name = "jaxlib_headers",
        annotations = HEADERS_ANNOTATIONS,
        apparent_name = "jaxlib_headers",
        data_only = True,
        lock = HEADERS_LOCK,
    )

    # Fetched with --config=cuda only.
    pip_repository(
        name = "pypi_cuda",
        apparent_name = "pypi_cuda",
        base_lock = LOCK,
        lock = CUDA_LOCK,
        merged = True,
    )

    # nvcc, with what it runs and reads: fetched to build CUDA kernels.
    pip_repository(
        name = "cuda_toolkit",
        annotations = CUDA_TOOLKIT_ANNOTATIONS,
        apparent_name = "cuda_toolkit",
        data_only = True,
        lock = CUDA_LOCK,
        merged = True,
        only = CUDA_TOOLKIT,
    )

    # Sphinx and a kernel of notebooks, for //docs:site and the tests of docs/notebooks.
    pip_repository(
        name = "pypi_docs",
        apparent_name = "pypi_docs",
        base_lock = LOCK,
        lock = DOCS_LOCK,
        merged = True,
    )

    # SeqIO, Lingvo and TensorFlow: fetched for the tests that name them in a
    # directive `# bazel: deps=@pypi_seqio//...`; no library or binary may.
    pip_repository(
        name = "pypi_seqio",
        apparent_name = "pypi_seqio",
        base_lock = LOCK,
        excluded = SEQIO_EXCLUDED,
        lock = SEQIO_LOCK,
        # Of tensorflow-datasets.
        sdists = ["promise"],
    )

    # Fetched with --config=tpu only.
    pip_repository(
        name = "pypi_tpu",
        apparent_name = "pypi_tpu",
        base_lock = LOCK,
        lock = TPU_LOCK,
        merged = True,
    )

    npm_package(
        name = "buildifier",
        package = "@bazel/buildifier",
        sha512 = "eZ/Aq+2r4PcJa6LbPCT6ffgIJfTU/gYilqIzoX2OLM4nNkbQC6tTMPZNn7aHHjhGPxbNLv41zm4Xqt1olCLgXw==",
        version = "8.2.1",
    )

    # A browser without windows, for the tests of pages.
    npm_package(
        name = "chromium",
        brotli = [
            "package/bin/al2023.tar.br",
            "package/bin/chromium.br",
            "package/bin/fonts.tar.br",
            "package/bin/swiftshader.tar.br",
        ],
        package = "@sparticuz/chromium",
        sha512 = "jiGWqSvPMdu4+P9TilYqAR7yEGPEHINx+lCvE/NqNO/EHYzF/x1hUiI5T6ioVIt7dEy7n88byyT0vk+dnsgQwA==",
        version = "153.0.0",
    )

def _extension(_):
    repositories()

extension = module_extension(implementation = _extension)
