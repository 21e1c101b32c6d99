#!/bin/sh
# Installs the Debian packages that building and testing need, and only those that are missing.
# Looks for what a package provides rather than for its name, so a machine that has it from elsewhere is left alone.
set -u

missing=
need() { # need PACKAGES COMMAND...: when the command fails, the packages are missing
	packages=$1
	shift
	"$@" >/dev/null 2>&1 || missing="$missing $packages"
}

has_headers() {
	printf '#include <stdio.h>\n' | cc -E -
}

need meson command -v meson
need ninja-build command -v ninja
need 'gcc libc6-dev' has_headers
need pkg-config command -v pkg-config
need python3 command -v python3
need util-linux command -v setpriv
need libcmocka-dev pkg-config --exists cmocka
need libjansson-dev pkg-config --exists jansson
need liburing-dev pkg-config --exists liburing

[ -n "$missing" ] || exit 0

if ! command -v apt-get >/dev/null; then
	echo "Missing here, by Debian's names:$missing. There is no apt-get; install their like and try again." >&2
	exit 1
fi
as_root=
if [ "$(id -u)" -ne 0 ]; then
	if ! command -v sudo >/dev/null; then
		echo "Missing packages:$missing. Neither root nor sudo here; have them installed with" >&2
		echo "  apt-get install$missing" >&2
		exit 1
	fi
	as_root=sudo
fi

echo "Installing missing packages:$missing"
$as_root apt-get -q update || echo 'apt-get update failed; trying with the package lists there are.' >&2
# shellcheck disable=SC2086 # a list of words
if ! $as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y install --no-install-recommends $missing; then
	echo "Could not install:$missing. Have them installed and try again." >&2
	exit 1
fi
