"""par: a Python program as one self-contained executable file."""

load("@rules_cc//cc:find_cc_toolchain.bzl", "find_cc_toolchain", "use_cc_toolchain")

def _impl(ctx):
    out = ctx.outputs.out
    program = ctx.attr.program[DefaultInfo].files_to_run
    cc = find_cc_toolchain(ctx)
    args = ctx.actions.args()
    args.add("--out", out)
    args.add("--launcher", ctx.file._launcher)
    args.add("--strip", cc.strip_executable)
    args.add("--main", ctx.file.main)
    args.add("--own", "%s.runfiles/%s" % (program.executable.path, ctx.workspace_name))
    if ctx.attr.privacy:
        args.add("--privacy")
    ctx.actions.run(
        executable = ctx.executable._make_par,
        arguments = [args],
        inputs = depset(
            [
                ctx.file._launcher,
                ctx.file._python_key,
                ctx.file.main,
            ],
            transitive = [cc.all_files],
        ),
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
        "privacy": attr.bool(doc = "With dp-accounting and SciPy, for the epsilon of DP-SGD."),
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
    },
    executable = True,
    toolchains = use_cc_toolchain(),
)
