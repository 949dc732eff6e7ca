"""docs_site: the documentation as a folder of HTML files, and as one file."""

def _impl(ctx):
    out = ctx.actions.declare_directory(ctx.label.name)
    ctx.actions.run(
        executable = ctx.executable._tool,
        arguments = [out.path, "--root=.", "--zip=" + ctx.outputs.zip.path],
        env = {"PYTHONHASHSEED": "0"},
        inputs = ctx.files.srcs,
        outputs = [out, ctx.outputs.zip],
        mnemonic = "DocsSite",
        progress_message = "Building the documentation",
        use_default_shell_env = True,
    )
    return [DefaultInfo(files = depset([out]), runfiles = ctx.runfiles([out]))]

docs_site = rule(
    implementation = _impl,
    attrs = {
        "srcs": attr.label_list(
            allow_files = True,
            doc = "Pages, and the modules that the API reference describes.",
        ),
        "zip": attr.output(mandatory = True),
        "_tool": attr.label(
            default = "//tools/docs:build_site",
            cfg = "exec",
            executable = True,
        ),
    },
)
