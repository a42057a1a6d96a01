"""A real Apptainer, from Debian's unstable suite, which alone has it: in a system of its own."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

# A root of its own, not a chroot, which Apptainer distrusts; and a user namespace, in which it has
# every capability even where this machine's root has not. All of it is gone with the process.
_ENTER = """
set -e
mount --bind "$1" "$1"
mount -t proc proc "$1/proc"
mount --rbind /dev "$1/dev"
mount --rbind /sys "$1/sys"
cd "$1"
mkdir -p old
pivot_root . old
shift
exec chroot . sh -c 'umount -l /old; exec "$@"' sh "$@"
"""
_NAMESPACE = (
    *("unshare", "--user", "--map-users=0:0:65536", "--map-groups=0:0:65536"),
    *("--setuid=0", "--setgid=0"),
)


class Apptainer:
    """The program, with the folder `shared` of its system for what goes in and out."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.shared = root / "shared"

    def __call__(self, *words: str) -> str:
        done = subprocess.run(
            [
                *("unshare", "--mount", "bash", "-c", _ENTER, "enter", str(self.root)),
                *("env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root"),
                # The tests' registry is on this machine and has no certificate.
                *("APPTAINER_NOHTTPS=1", *_NAMESPACE),
                *("sh", "-c", 'cd /shared; exec apptainer "$@"', "sh", *words),
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
        return done.stdout


@pytest.fixture(scope="session")
def apptainer(rendering_tools: None, tmp_path_factory: pytest.TempPathFactory) -> Apptainer:
    """Apptainer as it would be on a cluster's node."""
    root = tmp_path_factory.mktemp("apptainer") / "root"
    sites = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(SITE)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    mirror = next(site for site in sites if site.rstrip("/").endswith("/debian"))
    subprocess.run(
        [
            *("mmdebstrap", "--quiet", "--variant=minbase", "--include=apptainer,ca-certificates"),
            # A mirror's copy of unstable is older than its week of validity now and then.
            *('--aptopt=Acquire::Check-Valid-Until "false"', "sid", root, mirror),
        ],
        check=True,
    )
    (root / "shared").mkdir()
    for name in ("subuid", "subgid"):
        (root / "etc" / name).write_text("root:0:65536\n")
    (root / "etc/hosts").write_text("127.0.0.1 localhost\n")
    (root / "etc/resolv.conf").write_text(Path("/etc/resolv.conf").read_text())
    return Apptainer(root)
