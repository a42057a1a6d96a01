#!/usr/bin/env bash
# System packages the integration tests need and a plain machine lacks. Does nothing where they
# are all here; as anyone but root it says which ones to install.
#
#   tools/install_test_tools.sh [--basic]    --basic: only what the unit tests need
set -euo pipefail

missing=()
lacks() { command -v "$1" >/dev/null 2>&1 || missing+=("${@:2}"); }
lacks git git
lacks g++ g++
lacks patch patch
lacks make make
lacks curl curl
if [ "${1:-}" != --basic ]; then
  lacks shellcheck shellcheck
  lacks ccache ccache
  lacks redis-server redis-server
  lacks gpgv gpgv
  lacks openssl openssl
  lacks pkg-config pkg-config
  lacks kubectl kubernetes-client
  lacks gpg gnupg
  lacks dpkg-source dpkg-dev
  lacks mmdebstrap mmdebstrap
  # runc and not crun, which refuses hybrid cgroups; netavark with what it calls.
  lacks podman podman buildah runc netavark aardvark-dns iptables catatonit
  lacks slurmctld slurm-wlm slurm-client munge
  lacks buildah buildah
  lacks skopeo skopeo
  lacks dockerd docker.io
  lacks docker-registry docker-registry
  lacks htpasswd apache2-utils
  # The portal is looked at in a real browser.
  lacks chromedriver chromium chromium-driver
  # For torchvision.
  pkg-config --exists libjpeg libpng 2>/dev/null || missing+=(libjpeg-dev libpng-dev)
  # The headers of the Python that runs the tests, if it is the system's.
  python="${TORCHSMITH_VENV:-$(dirname "$0")/../.venv}/bin/python"
  command -v "$python" >/dev/null || python=python3
  "$python" -c 'import pathlib, sys, sysconfig
sys.exit(not pathlib.Path(sysconfig.get_path("include"), "Python.h").exists())' || missing+=(python3-dev)
  [ -e /usr/share/keyrings/debian-archive-keyring.gpg ] || missing+=(debian-archive-keyring)
fi
[ "${#missing[@]}" -gt 0 ] || exit 0

if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
  echo "error: the tests need: ${missing[*]}" >&2
  echo "  sudo apt-get install ${missing[*]}" >&2
  exit 4
fi
export DEBIAN_FRONTEND=noninteractive
apt-get -qq -o DPkg::Lock::Timeout=600 update
apt-get -qq -o DPkg::Lock::Timeout=600 install --yes --no-install-recommends "${missing[@]}" >/dev/null
