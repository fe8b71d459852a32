# The first cell that the plugin `gateway` has a kernel execute. It defines a function, which a user
# expression calls: while a cell runs, IPython may have put something of its own over the streams.
# The library is unpacked there when the host's is out of reach.
def _ipybox_start(settings):
    import os, sys
    shell = get_ipython()
    shell.history_manager.enabled = False
    directory = None
    if settings["remote"]:
        import fcntl, tempfile
        directory = tempfile.mkdtemp(prefix="ipybox-kernel-")
        try:
            # Held as long as the process lives: the next kernel's start asks for it.
            fcntl.flock(os.open(directory, os.O_RDONLY), fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            pass
        library = os.path.join(directory, "lib")
        os.mkdir(library)
        for name, text in settings["files"].items():
            path = os.path.join(library, *name.split("/"))
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8", newline="") as file:
                file.write(text)
        sys.path.insert(1, library)
        for name, value in settings["env"].items():
            if settings["library"]:
                value = value.replace(settings["library"], library)
            os.environ[name] = value
    if settings["cwd"]:
        os.chdir(settings["cwd"])
    for extension in settings["extensions"]:
        shell.extension_manager.load_extension(extension)
    from ipybox_kernel.link import start
    start(shell, {"directory": directory, "channels": settings["channels"]})
    del shell.user_ns["_ipybox_start"]
