"""Where programs that tests start work."""
import os
import tempfile
from pathlib import Path


def make_directory(prefix):
    """For a program: with an empty workspace, both for kernels of root's, too."""
    directory = Path(tempfile.mkdtemp(prefix=prefix))
    workspace = directory / "workspace"
    workspace.mkdir()
    for path in (directory, workspace):
        path.chmod(0o755)
        if os.geteuid() == 0:  # the sandbox drops root
            os.chown(path, 65534, 65534)
    return directory
