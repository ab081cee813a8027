#!/usr/bin/env bash
# Make a base for containers/cpu.def where no registry can be reached: Debian 12 with its Python 3.11, as a folder.
#
#   containers/debian-base.sh FOLDER        (as root; needs debootstrap; about 250 MB)
#
# The mirror is the one that apt uses already.
set -euo pipefail

folder=${1:?usage: debian-base.sh FOLDER}
mirror=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' 'Codename: bookworm' | head -n 1)
[ -n "$mirror" ] || { echo "apt knows no mirror for Debian 12 (bookworm); run apt-get update" >&2; exit 2; }

beside=$folder.partial
rm -rf "$beside"
debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates bookworm "$beside" "$mirror" >&2
# What belongs to this machine or to the making stays out.
rm -rf "$beside"/var/cache/apt/* "$beside"/var/lib/apt/lists/* "$beside"/var/log/* "$beside"/etc/apt/sources.list
: >"$beside/etc/resolv.conf"
rm -f "$beside/etc/hostname"
rm -rf "$folder"
mv "$beside" "$folder"
