"""par: a Python program as one self-contained executable file."""

def _impl(ctx):
    out = ctx.outputs.out
    program = ctx.attr.program[DefaultInfo].files_to_run
    args = ctx.actions.args()
    args.add("--out", out)
    args.add("--launcher", ctx.file._launcher)
    args.add("--unpack", ctx.file._unpack)
    args.add("--main", ctx.file.main)
    args.add("--runfiles", program.executable.path + ".runfiles")
    ctx.actions.run(
        executable = ctx.executable._make_par,
        arguments = [args],
        inputs = [
            ctx.file._launcher,
            ctx.file._python_key,
            ctx.file._unpack,
            ctx.file.main,
        ],
        # The archive contains its runfiles.
        tools = [program],
        outputs = [out],
        mnemonic = "PythonArchive",
        progress_message = "Packing %s" % out.short_path,
        use_default_shell_env = True,
    )
    return [DefaultInfo(executable = out)]

par = rule(
    implementation = _impl,
    attrs = {
        "main": attr.label(
            mandatory = True,
            allow_single_file = [".py"],
        ),
        "out": attr.output(mandatory = True),
        "program": attr.label(
            mandatory = True,
            doc = "The py_binary of `main`.",
            executable = True,
            cfg = "target",
        ),
        "_launcher": attr.label(
            default = "//tools/par:launcher",
            allow_single_file = True,
        ),
        "_make_par": attr.label(
            default = "//tools/par:make_par",
            cfg = "exec",
            executable = True,
        ),
        # The archive contains the interpreter and its standard library.
        "_python_key": attr.label(
            default = "@local_python//:KEY",
            allow_single_file = True,
        ),
        "_unpack": attr.label(
            default = "//tools/par:unpack.py",
            allow_single_file = True,
        ),
    },
    executable = True,
)
