#!/usr/bin/env bash
# Install Apptainer on Debian 12, which does not package it: sid's package with trixie's libc, in a prefix of its own.
#
#   containers/install-apptainer-debian12.sh PREFIX        then: export PATH=PREFIX/bin:$PATH
#
# The system's own packages stay as they are; nothing outside PREFIX is written. The mirror is the one that apt uses
# already. On other distributions take Apptainer's own packages. Its `From: <file>.sif` does not work with this
# private libc (Apptainer starts itself again without it); use a folder or a registry as the base.
set -euo pipefail

prefix=${1:?usage: install-apptainer-debian12.sh PREFIX}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

mirror=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' 'Codename: bookworm' | head -n 1)
[ -n "$mirror" ] || { echo "apt knows no mirror for Debian 12 (bookworm); run apt-get update" >&2; exit 2; }

mkdir -p "$work"/apt/{lists/partial,cache/archives/partial} "$work"/{debs,apptainer,libc6,patchelf}
for suite in bookworm trixie sid; do
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite main"
done >"$work/apt/sources.list"
options=(-q -o "Dir::Etc::sourcelist=$work/apt/sources.list" -o Dir::Etc::sourceparts=/dev/null
  -o "Dir::State::lists=$work/apt/lists" -o "Dir::Cache=$work/apt/cache" -o APT::Sandbox::User=root)
apt-get "${options[@]}" update >&2
(cd "$work/debs" && apt-get "${options[@]}" download apptainer/sid libc6/trixie patchelf/bookworm >&2)
for package in apptainer libc6 patchelf; do dpkg-deb -x "$work"/debs/"$package"_*.deb "$work/$package"; done

lib=lib/$(uname -m)-linux-gnu
mkdir -p "$prefix"/{bin,etc,glibc,"$lib",lib/var/lib/apptainer/mnt/session}
prefix=$(cd "$prefix" && pwd)
cp -a "$work/apptainer/usr/bin/apptainer" "$prefix/bin/"
cp -a "$work/apptainer/etc/apptainer" "$prefix/etc/"
cp -a "$work/apptainer/usr/$lib/apptainer" "$prefix/$lib/"
cp -a "$work/libc6/usr/$lib/." "$prefix/glibc/"
loader=$(basename "$prefix"/glibc/ld-linux-*.so.*)
for program in "$prefix/bin/apptainer" "$prefix/$lib/apptainer/bin/starter"; do
  "$work/patchelf/usr/bin/patchelf" --set-interpreter "$prefix/glibc/$loader" \
    --set-rpath "$prefix/glibc:/usr/$lib" "$program"
done
"$prefix/bin/apptainer" --version
