"""Systems on which nothing is installed but what debootstrap makes, mostly of this machine's distribution."""
import functools
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ROOT / "build-package/debs"
AS_ROOT = [] if os.geteuid() == 0 else ["sudo", "--non-interactive"]
# Not chroot: who is in one makes no user namespaces. /.old is what was the root before: nothing of
# the machine is left but devices, network and certificates.
ENTER = """set -e
mount --make-rprivate /
mount --bind "$1" "$1"
mount -t proc proc "$1/proc"
mount --rbind /sys "$1/sys"
mount --rbind /dev "$1/dev"
[ -z "$2" ] || mount --bind "$2" "$1/ccache"
mkdir -p "$1/.old"
cd "$1"
pivot_root . .old
umount --lazy /.old
shift 2
user=$1 directory=$2
shift 2
cd "$directory"
[ "$user" = root ] || set -- setpriv --reuid="$user" --regid="$user" --clear-groups -- "$@"
exec "$@"
"""


def os_release(key):
    return re.search(rf'^{key}="?([^"\n]*)', Path("/etc/os-release").read_text(), re.M)[1]


@functools.cache
def base(suite, *include):
    """What debootstrap made, kept beside the build. include: packages that a suite other than this machine's has."""
    made = ROOT / f"build-package/root-{suite}"
    if made.is_dir():
        return made
    assert shutil.which("debootstrap"), "debootstrap is missing: scripts/setup --packages installs it"
    made.parent.mkdir(exist_ok=True)
    fresh = made.with_name(made.name + ".new")
    subprocess.run([*AS_ROOT, "rm", "-rf", fresh], check=True)
    if include:
        # debootstrap may be older than the suite: what has no name yet is made as the newest is.
        how = [f"--include={','.join(include)}", "--keyring=/usr/share/keyrings/debian-archive-keyring.gpg", suite, fresh,
               "http://deb.debian.org/debian", "/usr/share/debootstrap/scripts/sid"]
    else:
        components = "main,universe" if os_release("ID") == "ubuntu" else "main"
        how = [f"--components={components}", suite, fresh]
    run = subprocess.run([*AS_ROOT, "debootstrap", "--variant=minbase", *how], capture_output=True, text=True, timeout=1200)
    assert run.returncode == 0, f"debootstrap: {run.stdout[-2000:]}{run.stderr}"
    subprocess.run([*AS_ROOT, "mv", fresh, made], check=True)
    return made


def packages():
    """The packages that scripts/package made."""
    found = {path.name.split("_")[0]: path for path in PACKAGES.glob("*.deb")}
    assert set(found) == {"ipybox", "libipybox-dev"}, (
        f"{PACKAGES} holds {sorted(found)}: run scripts/package deb --out {PACKAGES}")
    return found


class CleanRoot:
    """A copy of the base, in which commands run as in a system of its own."""

    def __init__(self, suite=os_release("VERSION_CODENAME"), *include):
        self.place = Path(tempfile.mkdtemp(prefix="ipybox-root-", dir="/var/tmp"))
        os.chmod(self.place, 0o755)
        self.path = self.place / "root"
        self.cache = ""
        self.environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8",
                            "DEBIAN_FRONTEND": "noninteractive"}
        # Where registries answer through a proxy, with a certificate of its own.
        self.environment |= {name: value for name, value in os.environ.items()
                             if name.lower() in ("http_proxy", "https_proxy", "no_proxy", "pip_index_url")}
        subprocess.run([*AS_ROOT, "cp", "--archive", base(suite, *include), self.path], check=True, timeout=600)
        # It is thrown away: what is on the disk when does not matter.
        subprocess.run([*AS_ROOT, "tee", self.path / "etc/dpkg/dpkg.cfg.d/unsafe"], input=b"force-unsafe-io\n", check=True,
                       stdout=subprocess.DEVNULL)
        certificates = list(Path("/usr/local/share/ca-certificates").glob("*.crt"))
        if certificates:
            self.copy(self.path / "usr/local/share/ca-certificates", *certificates)
            self.environment["PIP_CERT"] = "/etc/ssl/certs/ca-certificates.crt"

    def remove(self):
        subprocess.run([*AS_ROOT, "rm", "-rf", "--one-file-system", self.place], check=False, timeout=300)

    def copy(self, directory, *files):
        """Copies files of the machine to a directory of the system, by its path on the machine."""
        subprocess.run([*AS_ROOT, "mkdir", "--parents", directory], check=True)
        if files:
            subprocess.run([*AS_ROOT, "cp", "--recursive", "--no-dereference", *files, directory], check=True)

    def share_compiler_cache(self):
        """What was compiled on the machine need not be again; the compiler is the distribution's in both."""
        shown = subprocess.run(["ccache", "--get-config", "cache_dir"], capture_output=True, text=True)
        cache = os.environ.get("CCACHE_DIR") or shown.stdout.strip()
        if shown.returncode == 0 and Path(cache).is_dir():
            self.copy(self.path / "ccache")
            self.install("ccache")
            self.environment |= {"CCACHE_DIR": "/ccache", "CCACHE_NOHASHDIR": "1"}
            self.cache = cache

    def command(self, *words, user="root", directory="/", environment=None):
        """The command line that runs these in the system."""
        told = self.environment | {"HOME": "/root" if user == "root" else f"/home/{user}"} | (environment or {})
        return [*AS_ROOT, "env", "--ignore-environment", *(f"{name}={value}" for name, value in told.items()),
                "unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", ENTER, "sh", str(self.path), self.cache,
                user, directory, *map(str, words)]

    def run(self, *words, timeout=600, text=None, **how):
        return subprocess.run(self.command(*words, **how), capture_output=True, text=True, timeout=timeout, input=text)

    def do(self, *words, **how):
        """Its output; an error with all that it said if it fails."""
        run = self.run(*words, **how)
        assert run.returncode == 0, f"{' '.join(map(str, words))}: {run.returncode}\n{run.stdout[-4000:]}{run.stderr[-4000:]}"
        return run.stdout

    def install(self, *names):
        """Packages of the distribution, and files that lie in /packages of the system."""
        self.do("apt-get", "--quiet", "update")
        self.do("apt-get", "--quiet", "--yes", "--no-install-recommends", "install", *names, timeout=1200)
